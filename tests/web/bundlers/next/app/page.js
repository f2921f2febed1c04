"use client";
import { createElement, useEffect, useRef } from "react";
import { ask } from "../../main.js"; // imports gemma4-web, on the server, too

export default function Page() {
  const told = useRef(null);
  useEffect(() => ask(new Worker(new URL("../../worker.js", import.meta.url), { type: "module" }), told.current), []);
  return createElement("p", { id: "told", ref: told });
}
