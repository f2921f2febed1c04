// What a person chose, in localStorage.
import { BEGINNINGS, type BeginningsWish } from "../package/beginnings";
import type { TableWish } from "../package/package";
import type { Theme } from "../view/theme";

/** What a person chose; undefined means the package's own value. */
export interface Settings {
  theme: Theme;
  temperature?: number;
  topP?: number;
  repetitionPenalty?: number;
  maxTokens?: number;
  seed?: number;
  /** The system prompt of new chats. */
  system: string;
  /** Graphics memory that the page may take, in bytes; 0: no limit. */
  allowedMemory: number;
  /** Context lengths by package address. */
  context: Record<string, number>;
  /** Packages whose download was started: they go on without being asked again. */
  accepted: string[];
  /** Packages of other hosts that the person agreed to open: a link to one opens it. */
  known: string[];
  /** The hashes that these had, by address. */
  agreed: Record<string, string>;
  /** What opens by itself. */
  lastPackage: string;
  /** The package that searches by meaning; empty: none. */
  embedder: string;
  /** Graphics memory that it takes. */
  embedderBytes: number;
  /** Libraries that the person fixed, by package address. */
  libraries: Record<string, string>;
  /** Decode steps ahead of the client, by gemma4-web. */
  fast: boolean;
  /** With the package's drafter, several tokens a step. */
  drafts: boolean;
  /** Where the table of per-layer embeddings lies. */
  table: TableWish;
  /** How much of the graphics device is for beginnings of conversations. */
  beginnings: BeginningsWish;
}

const SETTINGS = "gemma4-settings";
const MOST_CONTEXT = 2 ** 24;
const DEFAULTS: Settings = {
  theme: "auto",
  system: "",
  allowedMemory: 0,
  context: {},
  accepted: [],
  known: [],
  agreed: {},
  lastPackage: "",
  embedder: "",
  embedderBytes: 0,
  libraries: {},
  fast: true,
  drafts: true,
  table: "auto",
  beginnings: "auto",
};

// As the fields have them: beyond, the client ends with an error of its own.
const RANGES: Record<string, [number, number]> = {
  temperature: [0, 2],
  topP: [0.01, 1],
  repetitionPenalty: [0.5, 2],
  maxTokens: [1, Number.MAX_SAFE_INTEGER],
  seed: [0, Number.MAX_SAFE_INTEGER],
  allowedMemory: [0, Number.MAX_SAFE_INTEGER],
  embedderBytes: [0, Number.MAX_SAFE_INTEGER],
};
const WHOLE = new Set(["maxTokens", "seed"]);
const THEMES: Theme[] = ["auto", "light", "dark"];
const TABLES: TableWish[] = ["auto", "device", "host"];

export function loadSettings(): Settings {
  try {
    return settingsFrom(JSON.parse(localStorage.getItem(SETTINGS) ?? "{}"));
  } catch {
    return structuredClone(DEFAULTS); // damaged, or storage is off
  }
}

/** What was kept, without values of another kind than the page's own: storage may be damaged, or another version's. */
export function settingsFrom(kept: unknown): Settings {
  const settings: Settings = structuredClone(DEFAULTS);
  if (typeof kept !== "object" || kept === null) return settings;
  for (const [name, value] of Object.entries(kept)) {
    if (fits(name, value)) Object.assign(settings, { [name]: value });
  }
  if (!THEMES.includes(settings.theme)) settings.theme = DEFAULTS.theme;
  if (!TABLES.includes(settings.table)) settings.table = DEFAULTS.table;
  if (!BEGINNINGS.includes(settings.beginnings)) settings.beginnings = DEFAULTS.beginnings;
  return settings;
}

function fits(name: string, value: unknown): boolean {
  if (Object.hasOwn(RANGES, name)) {
    const [least, most] = RANGES[name]!;
    return isNumber(value, least, most) && (!WHOLE.has(name) || Number.isInteger(value));
  }
  if (!Object.hasOwn(DEFAULTS, name) || !isAlike(value, DEFAULTS[name as keyof Settings])) return false;
  return name !== "context" || Object.values(value as object).every((each) => isNumber(each, 1, MOST_CONTEXT));
}

function isNumber(value: unknown, least: number, most: number): boolean {
  return typeof value === "number" && value >= least && value <= most;
}

function isAlike(value: unknown, own: unknown): boolean {
  if (typeof own !== "object") return typeof value === typeof own && own !== undefined;
  if (typeof value !== "object" || value === null || Array.isArray(value) !== Array.isArray(own)) return false;
  const kind = Array.isArray(own) || own === DEFAULTS.agreed || own === DEFAULTS.libraries ? "string" : "number";
  return Object.values(value).every((each) => typeof each === kind);
}

/** Keeps what has changed beside what other tabs have changed. */
export function saveSettings(changed: Partial<Settings>): void {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify({ ...loadSettings(), ...changed }));
  } catch {
    // Storage is off or full: the settings hold until the page is closed.
  }
}
