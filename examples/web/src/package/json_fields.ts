// Values of a package's JSON files, checked one by one: a package is a stranger's data, and what is odd in it is named in
// words that help, never by what JavaScript says where it is used.
import { formatCount } from "./units";
import { UserError } from "./user_error";

const HINT =
  "The package on the server is damaged, or something else wrote it: compile it again and upload all of its files.";
const NO_PACKAGE = "Does the address name a package's folder?";
/** As native packages have them: no path, no address, nothing that a cache or a disk reads as one. */
const PLAIN_NAME = /^\w[\w.-]{0,254}$/;

/** A JSON object of a file. `null` is the same as an absent field. */
export class Fields {
  private constructor(
    private readonly values: object,
    private readonly file: string,
    private readonly path: string,
  ) {}

  /** Reads a file; a UserError that names it if it is no JSON object. */
  static parse(data: Uint8Array, file: string): Fields {
    let value: unknown;
    try {
      value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(data));
    } catch {
      throw new UserError(`${file} is no JSON file.`, NO_PACKAGE);
    }
    if (!isObject(value)) throw new UserError(`${file} is no JSON object.`, NO_PACKAGE);
    return new Fields(value, file, "");
  }

  /** The object itself, unchecked: for a reader of its own. */
  get value(): unknown {
    return this.values;
  }

  /** Names and values as they are. */
  get names(): string[] {
    return Object.keys(this.values);
  }

  has(name: string): boolean {
    return this.raw(name) !== undefined;
  }

  raw(name: string): unknown {
    return Object.hasOwn(this.values, name) ? ((this.values as Record<string, unknown>)[name] ?? undefined) : undefined;
  }

  /** An object; an empty one where there is none. */
  object(name: string): Fields {
    return this.fieldsOf(this.raw(name) ?? {}, this.pathOf(name));
  }

  text(name: string, otherwise: string, longest = 1000): string {
    const value = this.raw(name) ?? otherwise;
    if (typeof value === "string" && value.length <= longest) return value;
    throw this.wrong(name, `a text of at most ${formatCount(longest)} characters`, value);
  }

  flag(name: string): boolean {
    const value = this.raw(name) ?? false;
    if (typeof value === "boolean") return value;
    throw this.wrong(name, "true or false", value);
  }

  /** A whole number of a range; `otherwise` where there is none. */
  count(name: string, least: number, most: number, otherwise?: number): number {
    const value = this.raw(name) ?? otherwise;
    if (Number.isInteger(value) && (value as number) >= least && (value as number) <= most) return value as number;
    throw this.wrong(name, `a whole number from ${formatCount(least)} to ${formatCount(most)}`, value);
  }

  number(name: string, least: number, most: number, otherwise: number): number {
    const value = this.raw(name) ?? otherwise;
    if (typeof value === "number" && value >= least && value <= most) return value;
    throw this.wrong(name, `a number from ${least} to ${most}`, value);
  }

  /** The name of a file of the package's folder. */
  fileName(name: string): string {
    const value = this.raw(name);
    if (typeof value === "string" && PLAIN_NAME.test(value)) return value;
    throw this.wrong(name, "a plain file name", value);
  }

  /** Objects by name, each under the plain name of a file. */
  files(name: string, most: number): [string, Fields][] {
    const files = this.object(name);
    const { names } = files;
    if (names.length > most) throw this.wrong(name, `at most ${formatCount(most)} files`, `${names.length} of them`);
    return names.map((each) => {
      if (!PLAIN_NAME.test(each)) throw this.wrong(name, "plain file names", each);
      return [each, files.fieldsOf(files.raw(each), files.pathOf(each))];
    });
  }

  /** Objects of a list; none where there is no list. */
  objects(name: string, most: number): Fields[] {
    return this.list(name, most).map((each, index) => this.fieldsOf(each, `${this.pathOf(name)}[${index}]`));
  }

  /** Texts of a list; none where there is no list. */
  texts(name: string, most: number, longest = 255): string[] {
    return this.list(name, most).map((each) => {
      if (typeof each === "string" && each.length <= longest) return each;
      throw this.wrong(name, `texts of at most ${longest} characters`, each);
    });
  }

  /** A UserError about a field. */
  wrong(name: string, expected: string, found: unknown): UserError {
    return new UserError(`${this.file}: \`${this.pathOf(name)}\` should be ${expected}, and is ${shown(found)}.`, HINT);
  }

  private list(name: string, most: number): unknown[] {
    const value = this.raw(name) ?? [];
    if (Array.isArray(value) && value.length <= most) return value as unknown[];
    throw this.wrong(name, `a list of at most ${formatCount(most)}`, value);
  }

  private fieldsOf(value: unknown, path: string): Fields {
    if (isObject(value)) return new Fields(value, this.file, path);
    throw new UserError(`${this.file}: \`${path}\` should be an object, and is ${shown(value)}.`, HINT);
  }

  private pathOf(name: string): string {
    const short = name.length > 60 ? `${name.slice(0, 60)}…` : name;
    return this.path ? `${this.path}.${short}` : short;
  }
}

function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function shown(value: unknown): string {
  if (value === undefined || value === null) return "missing";
  if (Array.isArray(value)) return `a list of ${formatCount(value.length)}`;
  if (typeof value === "object") return "an object";
  const text = JSON.stringify(value) ?? String(value);
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}
