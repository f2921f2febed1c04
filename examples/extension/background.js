// All that the service worker does, so that nothing is lost when the browser ends it after 30 s without work.
chrome.sidePanel.setPanelBehavior({ openPanelOnActionClick: true });
