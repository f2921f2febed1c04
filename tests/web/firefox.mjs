// Firefox as it is installed, headless, with WebGPU and a profile of its own, driven by WebDriver BiDi. Playwright speaks it
// to the channels of Mozilla, so that the scenarios written for Chromium run as they are, without a second library. One
// command that Playwright sends at every start is younger than Firefox ESR 153; it is answered here. `job.firefox` is
// the browser's path. FIREFOX_LIBS names a folder of shared libraries for it alone: for a machine with a GPU.
import { firefox } from "playwright-core";
import utils from "playwright-core/lib/utilsBundle";

const UNKNOWN = "emulation.setMediaFeaturesOverride";
const PREFERENCES = {
  "dom.webgpu.enabled": true,
  "gfx.webgpu.ignore-blocklist": true, // devices in software are on it
  "browser.cache.disk.enable": false,
  "media.navigator.streams.fake": true,
};
const { FIREFOX_LIBS } = process.env;

const { send } = utils.ws.prototype;
utils.ws.prototype.send = function (text, ...rest) {
  const { id, method } = JSON.parse(text);
  if (method !== UNKNOWN) return send.call(this, text, ...rest);
  setTimeout(() => this.emit("message", JSON.stringify({ type: "success", id, result: {} }), false));
};

/** A browser with one tab. */
export function launchFirefox(executablePath, profile, options) {
  return firefox.launchPersistentContext(profile, {
    ...options,
    channel: "moz-firefox",
    executablePath,
    headless: true,
    firefoxUserPrefs: PREFERENCES,
    env: { ...process.env, ...(FIREFOX_LIBS && { LD_LIBRARY_PATH: FIREFOX_LIBS }) },
  });
}
