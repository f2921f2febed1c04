// What a caller of `useDrafter` chooses; by itself, for its types are all that the package publishes of the drafter.

/** How a file of the package comes; as `fetch`, by default through a cache of the browser's. */
export type FetchFile = (url: string, sha256?: string) => Promise<Response>;

export interface DrafterOptions {
  /** Drafts of every round; by default as many as pay. */
  readonly drafts?: number;
  readonly fetch?: FetchFile;
}
