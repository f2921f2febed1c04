// A recording from the microphone, with its level.
import { close, openDevice } from "./devices";

const FULL = 128; // of a sample of 8 bits, whose middle it is, too

export class Recording {
  private readonly chunks: Blob[] = [];
  private readonly samples: Uint8Array<ArrayBuffer>;
  private readonly analyser: AnalyserNode;
  private readonly begun = performance.now();
  private readonly ended: Promise<void>;

  private constructor(
    private readonly stream: MediaStream,
    private readonly context: AudioContext,
    private readonly recorder: MediaRecorder,
  ) {
    this.analyser = context.createAnalyser();
    this.samples = new Uint8Array(this.analyser.fftSize);
    context.createMediaStreamSource(stream).connect(this.analyser);
    recorder.ondataavailable = ({ data }) => this.chunks.push(data);
    // Also when the microphone is unplugged.
    this.ended = new Promise((resolve) => (recorder.onstop = () => resolve()));
    recorder.start();
  }

  static async start(): Promise<Recording> {
    const stream = await openDevice("microphone");
    try {
      return new Recording(stream, new AudioContext(), new MediaRecorder(stream));
    } catch (error) {
      close(stream);
      throw error;
    }
  }

  get seconds(): number {
    return (performance.now() - this.begun) / 1000;
  }

  get isOver(): boolean {
    return this.recorder.state === "inactive";
  }

  /** From 0 to 1, as ears would have it: 60 dB. */
  get level(): number {
    this.analyser.getByteTimeDomainData(this.samples);
    const loudest = this.samples.reduce((most, sample) => Math.max(most, Math.abs(sample - FULL)), 0) / FULL;
    return loudest ? Math.max(0, 1 + Math.log10(loudest) / 3) : 0;
  }

  /** Ends it, and gives the microphone back. */
  async stop(): Promise<File> {
    if (!this.isOver) this.recorder.stop();
    await this.ended;
    close(this.stream);
    await this.context.close();
    const now = new Date();
    const time = [now.getHours(), now.getMinutes(), now.getSeconds()].map((part) => String(part).padStart(2, "0"));
    const type = this.recorder.mimeType.replace(/^video\//, "audio/") || "audio/webm";
    return new File(this.chunks, `recording-${time.join("")}`, { type });
  }
}
