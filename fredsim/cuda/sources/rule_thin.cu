// As rule.cu, for minibatches of at most SAMPLES ≤ 8 samples: the gradient of an element is formed by the thread that applies
// the rule to it, and is never in memory. The order of the sums over a minibatch is that of gradients.cu. Before this
// file stands what stands before rule.cu, and also:
//   #define SAMPLES …        1, 2, 4 or 8
#include "apply_thin.h"

// The pushes are of minibatches first − window and those behind it.
DEVICE void apply_thin_pushes(float* const* arrays, const ApplyThin& p, const Gradients& minibatches, int window) {
  constexpr int AHEAD = SAMPLES <= 2 ? 4 : SAMPLES <= 4 ? 2 : 1;  // events whose inputs and errors are read together
  const Strip strip = strip_of(minibatches);
  if (strip.count <= 0) return;
  float values[ROWS][ARRAYS];
  int worst = p.events;
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int a = 0; a < ARRAYS; a++)
      values[i][a] = i < strip.count ? arrays[a][strip.place + (i64)i * strip.width] : 0.0f;
#pragma unroll AHEAD
  for (int e = 0; e < p.events; e++) {
    float* const target = read(p.targets + e);
    float means[ROWS], coefficients[COEFFICIENTS + 1];
    UNROLL for (int c = 0; c < COEFFICIENTS; c++) coefficients[c] = read(p.coefficients + e * COEFFICIENTS + c);
    strip_gradient<SAMPLES>(minibatches, strip, p.first - window + e, means);
    UNROLL for (int i = 0; i < ROWS; i++) {
      if (i >= strip.count) continue;
      rule(values[i], means[i], coefficients);
      const float theta = values[i][0];
      if (theta * 0.0f != 0.0f) worst = smaller(worst, e);
      if (target) target[strip.place + (i64)i * strip.width] = theta;
    }
  }
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int a = 0; a < ARRAYS; a++)
      if (i < strip.count) arrays[a][strip.place + (i64)i * strip.width] = values[i][a];
  if (worst < p.events) lower(p.diverged_at, p.first + worst);
}

KERNEL(apply_thin, ApplyThin, 128, 0) { apply_thin_pushes(p.arrays, p, p.minibatches, p.first); }

KERNEL(apply_thin_runs, ApplyThinRuns, 128, 0) {
  const ApplyThin own = pushes_of(p, blockIdx.y);
  if (own.events > 0) apply_thin_pushes(p.arrays + blockIdx.y * ARRAYS, own, p.minibatches, p.window);
}
