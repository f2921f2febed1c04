// Camera and microphone, asked for only when a person wants them.
import { UserError } from "../package/user_error";

type Device = "camera" | "microphone";

/** The device's stream; throws a UserError where there is none, or where the person or the system refuses it. */
export async function openDevice(device: Device): Promise<MediaStream> {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new UserError(`The browser gives this page no ${device}.`, "Open it by https, or from localhost.");
  }
  const wanted =
    device === "camera" ? { video: { width: { ideal: 1920 }, facingMode: "environment" } } : { audio: true };
  try {
    return await navigator.mediaDevices.getUserMedia(wanted);
  } catch (error) {
    throw explain(device, error);
  }
}

export function close(stream: MediaStream | undefined): void {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

function explain(device: Device, error: unknown): UserError {
  const { name, message } = error as DOMException;
  const file = device === "camera" ? "Attach a picture instead." : "Attach a sound instead.";
  if (name === "NotAllowedError") {
    return new UserError(
      `The ${device} was not allowed.`,
      `Allow it for this page in the browser (beside its address), or in the system's settings. ${file}`,
    );
  }
  if (name === "NotFoundError" || name === "OverconstrainedError")
    return new UserError(`No ${device} was found.`, file);
  if (name === "NotReadableError") {
    return new UserError(`The ${device} does not start.`, `Another program may be using it. ${file}`);
  }
  return new UserError(`The ${device} does not start: ${message}`, file);
}
