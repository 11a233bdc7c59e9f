// As rule_thin.cu, for large networks: a block has a tile of 4·TALL rows (inputs) × 128 columns of a layer, a thread
// TALL rows × 4 columns, which it reads and writes as one. The inputs of EVENTS events at a time are in shared memory.
// Before this file stands what stands before rule_thin.cu, and also:
//   #define TALL …           8, 4 or 2: the more arrays a rule changes, the fewer rows have room in registers
#include "apply_thin.h"

#define EVENTS 8

DEVICE void apply_wide_pushes(float* const* arrays, const ApplyThin& p, const Gradients& minibatches, int window) {
  SHARED(float, inputs);  // [EVENTS][4·TALL][SAMPLES]
  const int t = threadIdx.x, l = layer_of(minibatches), width = minibatches.width[l], across = (width + 127) / 128;
  const int tile = blockIdx.x - minibatches.first_tile[l], row0 = tile / across * 4 * TALL, own = row0 + t / 32 * TALL;
  const int column = tile % across * 128 + t % 32 * 4, count = larger(0, smaller(4, width - column));
  const int bias = minibatches.inputs[l], mu = minibatches.mu;  // the row `bias` has the biases; there are no further
  const i64 place = minibatches.at[l] + (i64)own * width + column;
  const bool whole = width % 4 == 0 && minibatches.at[l] % 4 == 0;
  float values[TALL][4][ARRAYS];
  int worst = p.events;
  UNROLL for (int i = 0; i < TALL; i++)
    UNROLL for (int a = 0; a < ARRAYS; a++) {
      alignas(16) float four[4];
      const int some = own + i <= bias ? count : 0;
      read_four(four, arrays[a] + place + (i64)i * width, some, whole && some);
      UNROLL for (int c = 0; c < 4; c++) values[i][c][a] = four[c];
    }
  for (int begin = 0; begin < p.events; begin += EVENTS) {
    const int some = smaller(EVENTS, p.events - begin);
    const i64 first = (i64)(p.first - window + begin) * mu;
    barrier();
    for (int id = t; id < some * 4 * TALL * SAMPLES; id += 128) {
      const int row = id % (4 * TALL), m = id / (4 * TALL) % SAMPLES, e = id / (4 * TALL * SAMPLES), k = row0 + row;
      const i64 sample = first + e * mu + m;
      float x = m < mu && k == bias ? 1.0f : 0.0f;
      if (m < mu && k < bias)
        x = minibatches.x[l][(minibatches.gathered[l] ? (i64)minibatches.rows[sample] : sample) * bias + k];
      inputs[(e * 4 * TALL + row) * SAMPLES + m] = x;
    }
    barrier();
    UNROLL_NOT for (int e = 0; e < some; e++) {
      float* const target = read(p.targets + begin + e);
      alignas(16) float errors[SAMPLES][4];
      float coefficients[COEFFICIENTS + 1];
      UNROLL for (int c = 0; c < COEFFICIENTS; c++) coefficients[c] = read(p.coefficients + (begin + e) * COEFFICIENTS + c);
      UNROLL for (int m = 0; m < SAMPLES; m++) {
        const float* const from = minibatches.errors[l] + (first + e * mu + m) * width + column;
        const int some = m < mu ? count : 0;
        read_four(errors[m], from, some, whole && some);
      }
      UNROLL for (int i = 0; i < TALL; i++) {
        if (own + i > bias) continue;
        const float* const x = inputs + (e * 4 * TALL + own - row0 + i) * SAMPLES;
        alignas(16) float theta[4];
        UNROLL for (int c = 0; c < 4; c++) {
          float leaves[SAMPLES];
          UNROLL for (int m = 0; m < SAMPLES; m++) leaves[m] = x[m] * errors[m][c];
          UNROLL for (int apart = 1; apart < SAMPLES; apart *= 2)
            UNROLL for (int m = 0; m + apart < SAMPLES; m += 2 * apart) leaves[m] = leaves[m] + leaves[m + apart];
          rule(values[i][c], mean_of(leaves[0], mu), coefficients);
          theta[c] = values[i][c][0];
          if (c < count && theta[c] * 0.0f != 0.0f) worst = smaller(worst, begin + e);
        }
        if (target && count) write_four(target + place + (i64)i * width, theta, count, whole);
      }
    }
  }
  UNROLL for (int i = 0; i < TALL; i++)
    UNROLL for (int a = 0; a < ARRAYS; a++)
      UNROLL for (int c = 0; c < 4; c++)
        if (own + i <= bias && c < count) arrays[a][place + (i64)i * width + c] = values[i][c][a];
  if (worst < p.events) lower(p.diverged_at, p.first + worst);
}

KERNEL(apply_wide, ApplyThin, 128, 4 * 8 * 32 * 8) { apply_wide_pushes(p.arrays, p, p.minibatches, p.first); }

KERNEL(apply_wide_runs, ApplyThinRuns, 128, 4 * 8 * 32 * 8) {
  const ApplyThin own = pushes_of(p, blockIdx.y);
  if (own.events > 0) apply_wide_pushes(p.arrays + blockIdx.y * ARRAYS, own, p.minibatches, p.window);
}
