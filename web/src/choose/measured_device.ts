// The device of a measurement, which chooseLibrary opens for itself.
import { nativeOf } from "../gpu/native";
import { withClock } from "../gpu/pass_clock";
import { Waits, withWaits } from "../gpu/waits";

/** Names a device that the module leaves alone: it would first look for the timer that ends waits. */
export const MEASURED_DEVICE = "gemma4-web: chooseLibrary";

/** A device with a clock if there is one; undefined where it does not open. */
export async function openMeasured(
  adapter: Pick<GPUAdapter, "features" | "requestDevice">,
  descriptor: GPUDeviceDescriptor,
): Promise<GPUDevice | undefined> {
  const asked = descriptor.requiredFeatures as Iterable<GPUFeatureName>;
  const requiredFeatures = withClock(asked, adapter.features);
  try {
    const device = await adapter.requestDevice({ ...descriptor, requiredFeatures, label: MEASURED_DEVICE });
    // To find out whether a timer ends waits takes longer than a choice may: empty submissions hurt nowhere.
    const native = nativeOf(device);
    const waits = new Waits(native, true);
    const waited = withWaits(native, waits);
    device.createBuffer = waited.createBuffer;
    device.queue.onSubmittedWorkDone = waited.onSubmittedWorkDone;
    void device.lost.then(() => waits.stop());
    return device;
  } catch {
    return undefined;
  }
}
