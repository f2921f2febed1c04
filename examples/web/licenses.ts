import fs from "node:fs";
import path from "node:path";
import type { Plugin } from "vite";

interface Package {
  name: string;
  version: string;
  license?: string;
  dependencies?: Record<string, string>;
}

const LICENSE_FILE = /^(licen[cs]e|copying|notice)/i;
/** Published as one file that holds their dependencies too. */
const PREBUNDLED = ["@mlc-ai/web-llm"];

/**
 * Plugins that put a file with the licences of all bundled packages next to the page. Vite's own `build.license` leaves
 * out what only the worker imports, the WebLLM client among it.
 */
export function licenses(fileName: string): { page: Plugin; worker: Plugin } {
  const texts = new Map<string, string>();
  const add = (folder: string): void => {
    const found = JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8")) as Package;
    const files = fs
      .readdirSync(folder)
      .filter((entry) => LICENSE_FILE.test(entry))
      .sort();
    if (files.length === 0) throw new Error(`${found.name} ${found.version} is bundled and has no licence file`);
    const parts = files.map((entry) => fs.readFileSync(path.join(folder, entry), "utf8").trim());
    texts.set(`${found.name} ${found.version} (${found.license ?? "see below"})`, parts.join("\n\n"));
    if (!PREBUNDLED.includes(found.name)) return;
    for (const name of Object.keys(found.dependencies ?? {})) {
      const places = [path.join(folder, "node_modules", name), path.join(folder.slice(0, -found.name.length), name)];
      const place = places.find((entry) => fs.existsSync(entry));
      if (place === undefined) throw new Error(`${name}, which ${found.name} needs, is not installed`);
      add(place);
    }
  };
  const collect = (bundle: Record<string, { type: string; moduleIds?: string[] }>): void => {
    for (const file of Object.values(bundle)) {
      for (const id of file.moduleIds ?? []) {
        const folder = id.startsWith("\0") ? null : packageFolder(id);
        if (folder !== null) add(folder);
      }
    }
  };
  return {
    worker: { name: "licenses-of-worker", generateBundle: (_, bundle) => collect(bundle) },
    page: {
      name: "licenses",
      generateBundle(_, bundle) {
        collect(bundle); // the worker was bundled before, while the page's modules were read
        const titles = [...texts.keys()].sort();
        const head = "Licences of the packages that are bundled in this page and in its worker:\n";
        const line = "=".repeat(80);
        const sections = titles.map((title) => `\n${line}\n${title}\n${line}\n\n${texts.get(title)}\n`);
        this.emitFile({
          type: "asset",
          fileName,
          source: `${head}${titles.map((title) => `- ${title}\n`).join("")}${sections.join("")}`,
        });
      },
    },
  };
}

/** The folder of the package that a module belongs to; null for the page's own modules. */
function packageFolder(id: string): string | null {
  const found = /^.*[\\/]node_modules[\\/](@[^\\/]+[\\/])?[^\\/]+/.exec(id);
  return found === null ? null : found[0];
}
