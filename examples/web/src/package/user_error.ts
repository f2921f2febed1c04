/** Something that the user has to know: what is wrong, and what can be done about it. */
export class UserError extends Error {
  constructor(
    message: string,
    readonly hint: string,
  ) {
    super(message);
  }
}
