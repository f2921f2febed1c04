import { ask } from "../main.js";

ask(new Worker(new URL("../worker.js", import.meta.url), { type: "module" }), document.querySelector("#told"));
