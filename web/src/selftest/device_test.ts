// The known-answer test of a library on its device, while the client makes the pipelines: a wrong device fails the
// load with a message, instead of talking nonsense later.
import type { Device } from "../gpu/device";
import type { KernelGate } from "../gpu/kernel_gate";
import {
  KnownAnswerTest,
  parseKnownAnswers,
  testedAdapter,
  type AdapterText,
  type KnownAnswers,
  type TestedDevice,
} from "./known_answers";
import { PassedTests } from "./known_answer_store";
import { pinSubgroupSize } from "../gpu/subgroup_size";
import { because, counts } from "../stats";
import { WrongLibraries } from "./wrong_libraries";

export class DeviceTest implements KernelGate {
  private test: KnownAnswerTest | undefined;
  private readonly tested: AdapterText;
  private hasPassed = false;
  private readonly isReady: Promise<void>;

  private constructor(
    private readonly device: Device,
    private readonly answers: KnownAnswers,
    private readonly onWrong: () => Promise<void>,
  ) {
    this.tested = testedAdapter(device.adapter, device.device.features);
    this.isReady = this.prepare();
  }

  /**
   * The test that a library's metadata describes; undefined if it describes none that the module understands.
   * `onWrong` comes before the load fails.
   */
  static of(metadata: string, device: Device, onWrong: () => Promise<void>): DeviceTest | undefined {
    try {
      const answers = parseKnownAnswers(metadata);
      if (answers) return new DeviceTest(device, answers, onWrong);
      because("the library brings no known answers: the device is not tested");
    } catch (error) {
      because(`the library's known answers cannot be read: ${String(error)}`);
    }
    return undefined;
  }

  /** A kernel's text with its subgroups' size, where the device lets it be set. */
  pinned(code: string): string {
    return pinSubgroupSize(code, this.answers.subgroupSize ?? 0, this.device.device, this.device.adapter);
  }

  /** Resolves when the kernel's answers are right, or cannot be had. */
  async check(kernel: string, pipeline: GPUComputePipeline, layout: GPUBindGroupLayout): Promise<void> {
    await this.isReady;
    const problem = await this.test?.check(kernel, pipeline, layout);
    counts.deviceTestMs = this.test?.milliseconds ?? 0;
    if (problem) {
      await (await WrongLibraries.open())?.add(this.answers, this.tested);
      await this.onWrong();
      counts.device = problem.message;
      throw new Error(problem.message);
    }
    if (!this.test?.passed || this.hasPassed) return;
    this.hasPassed = true;
    counts.device = "passed";
    await (await WrongLibraries.open())?.forget(this.answers, this.tested);
  }

  private async prepare(): Promise<void> {
    const { device, adapter } = this.device;
    const kept = await PassedTests.open(this.answers, adapter);
    if (await kept?.has()) {
      counts.device = "passed before";
      return;
    }
    const { createBuffer, createBindGroup, createCommandEncoder, pushErrorScope, popErrorScope, writeBuffer, submit } =
      this.device.native;
    const tested: TestedDevice = {
      createBuffer,
      createBindGroup,
      createCommandEncoder,
      limits: device.limits,
      pushErrorScope: pushErrorScope as TestedDevice["pushErrorScope"],
      popErrorScope,
      queue: { writeBuffer, submit: submit as GPUQueue["submit"] },
    };
    this.test = new KnownAnswerTest(tested, this.answers, this.tested, kept);
  }
}
