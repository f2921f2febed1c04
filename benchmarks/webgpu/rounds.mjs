// What a round of guesses consists of: a guess, and the model on a few rows, whose tokens it checks.
import { draftToken, verifyTokens } from "../../gemma4_compile/verification/webgpu_drafter.mjs";
import { replayed, tokenAt } from "./measure.mjs";
import { rounded, summary } from "./statistics.mjs";

const line = (context, { launches, samples, kernels }) => ({
  context,
  launches,
  replayed_ms: summary(samples),
  kernels,
});

/** `rows` tokens at once after `context` tokens. */
export async function measureVerify(model, context, rows, settings) {
  model.restart(context);
  const ids = Array.from({ length: rows }, (_, row) => tokenAt(context + row));
  const step = await replayed(
    model,
    () =>
      model.scoped(() => {
        model.beginForward(rows);
        const [logits] = verifyTokens(model, ids);
        model.endForward();
        return logits;
      }),
    settings,
  );
  return { rows, ...line(context, step) };
}

/** One guess after `context` tokens, by a drafter with random weights. */
export async function measureDraft(model, context, settings) {
  model.restart(context);
  const params = model.makeDrafter();
  const [width] = model.metadata.drafter.params.find(({ name }) => name.includes(".post_projection.")).shape;
  const step = await replayed(
    model,
    () =>
      model.scoped(() => {
        const state = Array.from({ length: width }, (_, i) => rounded(Math.sin(i)));
        const positions = model.upload([4], "int32", [context - 1, 1, context - 1, 0]);
        const token = model.upload([1], "int32", [tokenAt(context)]);
        return draftToken(model, token, model.upload([1, width], "float32", state), positions, params)[0];
      }),
    settings,
  );
  params.dispose();
  return line(context, step);
}
