// A file against the hashes of its pieces, as it comes: the browser's own SHA-256 takes, and copies, a piece instead of a file.
import type { Pieces } from "../package/provenance";
import { sha256 } from "./hash";

/** Memory for what is hashed at once, the same for one file after the other: new ones would stay until garbage is collected. */
export class CheckRoom {
  private room = new Uint8Array(0);

  of(nbytes: number): Uint8Array<ArrayBuffer> {
    if (this.room.length < nbytes) this.room = new Uint8Array(nbytes);
    return this.room.subarray(0, nbytes);
  }
}

export class PieceCheck {
  private readonly piece: Uint8Array<ArrayBuffer>;
  private held = 0;
  private index = 0;

  constructor(
    private readonly expected: Pieces,
    room: CheckRoom,
  ) {
    this.piece = room.of(expected.nbytes);
  }

  /** Takes the bytes that come next; whether all pieces that are whole by now are right. */
  async update(data: Uint8Array): Promise<boolean> {
    for (let at = 0; at < data.length; ) {
      const part = data.subarray(at, at + this.piece.length - this.held);
      this.piece.set(part, this.held);
      this.held += part.length;
      at += part.length;
      if (this.held === this.piece.length && !(await this.close())) return false;
    }
    return true;
  }

  /** Whether the last piece is right, too, and none is missing. */
  async end(): Promise<boolean> {
    return (this.held === 0 || (await this.close())) && this.index === this.expected.sha256.length;
  }

  private async close(): Promise<boolean> {
    const found = await sha256(this.piece.subarray(0, this.held));
    this.held = 0;
    return found === this.expected.sha256[this.index++];
  }
}
