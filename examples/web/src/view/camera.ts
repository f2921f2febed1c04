// The dialog that takes a picture with the camera.
import { close, openDevice } from "../media/devices";
import { byId } from "./dom";

export class Camera {
  private readonly dialog = byId<HTMLDialogElement>("camera");
  private readonly viewfinder = byId<HTMLVideoElement>("viewfinder");
  private readonly take = byId<HTMLButtonElement>("take-picture");

  /** A picture; undefined: the person thought better of it. */
  async picture(): Promise<File | undefined> {
    const { dialog, viewfinder, take } = this;
    const stream = await openDevice("camera"); // the browser asks before the dialog is there
    take.disabled = true;
    viewfinder.srcObject = stream;
    viewfinder.onloadeddata = () => {
      take.disabled = false;
      take.focus();
    };
    dialog.showModal();
    try {
      return await new Promise<File | undefined>((resolve, reject) => {
        dialog.onclose = () => resolve(undefined);
        byId("close-camera").onclick = () => dialog.close();
        take.onclick = () => void this.frame().then(resolve, reject);
      });
    } finally {
      close(stream);
      viewfinder.srcObject = null;
      dialog.close();
    }
  }

  private async frame(): Promise<File> {
    const { videoWidth, videoHeight } = this.viewfinder;
    const canvas = new OffscreenCanvas(videoWidth, videoHeight);
    canvas.getContext("2d")!.drawImage(this.viewfinder, 0, 0);
    const blob = await canvas.convertToBlob({ type: "image/png" });
    return new File([blob], "camera.png", { type: blob.type });
  }
}
