// Gradients of dense layers, means over the µ samples of each of B minibatches.
//
// The order of sums: the leaves x[m, k]·e[m, j] of a weight, or 1·e[m, j] of a bias, are added by the balanced binary
// tree over m; + 0 at the end, then ÷ µ once. A leaf that is missing is +0, which changes no sum but −0.
// A block sums at most LEAVES = 128 samples; of larger minibatches, `sum_parts` adds the sums of these by the tree.
#include "gradients.h"
#include "tree.h"

// Tiles of 64 rows (inputs) × N columns: a thread has 8 × 4 sums. The next STAGES − 1 chunks of S samples are on their
// way to shared memory while one is used. Sums of 32 and of 64 leaves that wait for their neighbours are there, too.
template <int N> DEVICE void gradient(const Gradients& p) {
  constexpr int M = 64, S = 16, STAGES = 3, T = M * N / 32, LX = S * M / 4 / T, LE = S * N / 4 / T;
  SHARED(float, shared);
  float* const xs = shared;                              // [STAGES][S][M]
  float* const es = xs + STAGES * S * M;                 // [STAGES][S][N]
  float4* const waiting = (float4*)(es + STAGES * S * N) + threadIdx.x;  // [2][8][T]
  const float** const from = (const float**)(es + STAGES * S * N + 2 * 8 * T * 4);  // [LEAVES]: where x of samples are
  const Lane own = lane_of<N / 4>();
  const int l = layer_of(p), inputs = p.inputs[l], width = p.width[l], tiles = (width + N - 1) / N;
  const int index = blockIdx.x - p.first_tile[l], k0 = index / tiles * M, n0 = index % tiles * N;
  const int t = threadIdx.x, b = blockIdx.z, begin = blockIdx.y * LEAVES, count = smaller(LEAVES, p.mu - begin);
  const int pairs = (count + 31) / 32, steps = (count + S - 1) / S;
  const i64 first = (i64)b * p.mu + begin;  // of this block's samples, in all minibatches
  const float* const x = p.x[l];
  const float* const errors = p.errors[l];
  const bool fours = inputs % 4 == 0 && width % 4 == 0 && lies_in_fours(x) && lies_in_fours(errors);
  const bool biased = k0 + M > inputs;  // the row behind the last input has the biases, whose inputs are 1
  for (int m = t; m < count; m += T) from[m] = x + (p.gathered[l] ? (i64)p.rows[first + m] : first + m) * inputs + k0;
  barrier();
  // Where a thread's copies of the next errors begin, four floats each; beyond the last column, those of another.
  const float* e[LE];
  UNROLL for (int i = 0; i < LE; i++) {
    const int id = t + i * T, n = n0 + id % (N / 4) * 4;
    e[i] = errors + (first + id / (N / 4)) * width + (n < width ? n : 0);
  }
  auto request = [&](int step, int stage) {
    const int left = count - step * S;  // samples
    if (fours && !biased && left >= S) {
      UNROLL for (int i = 0; i < LX; i++) {
        const int id = t + i * T, m = id / (M / 4), k = id % (M / 4) * 4;
        copy16(xs + (stage * S + m) * M + k, from[step * S + m] + k);
      }
      UNROLL for (int i = 0; i < LE; i++) {
        const int id = t + i * T;
        copy16(es + (stage * S + id / (N / 4)) * N + id % (N / 4) * 4, e[i]);
      }
    } else if (step < steps) {
      UNROLL_LITTLE for (int i = 0; i < 4 * LX; i++) {
        const int id = t + i * T, m = id / M, k = id % M;
        float* const to = xs + (stage * S + m) * M + k;
        if (k0 + k < inputs && m < left) copy4(to, from[step * S + m] + k, true);
        else *to = k0 + k == inputs && m < left ? 1.0f : 0.0f;
      }
      UNROLL for (int i = 0; i < LE; i++) {
        const int id = t + i * T, m = id / (N / 4), n = id % (N / 4) * 4;
        copy_some(es + (stage * S + m) * N + n, e[i], errors, m < left ? width - n0 - n : 0);
      }
    }
    UNROLL for (int i = 0; i < LE; i++) e[i] += (i64)S * width;
    end_group();
  };
  UNROLL for (int step = 0; step < STAGES - 1; step++) request(step, step);
  float sum[8][4];
  for (int pair = 0, step = 0, stage = 0; pair < pairs; pair++) {
    UNROLL for (int i = 0; i < 8; i++)
      UNROLL for (int c = 0; c < 4; c++) sum[i][c] = 0.0f;
    UNROLL_NOT for (int half = 0; half < 2 && step < steps; half++, step++) {
      wait_for<STAGES - 2>();
      barrier();
      request(step + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
      const float* const X = xs + stage * S * M + own.row * 8;
      const float* const E = es + stage * S * N + own.column * 4;
      float eights[2][8][4];  // sums of eight leaves
      UNROLL for (int m = 0; m < S; m += 4) {
        float u[4][8], v[4][4];
        UNROLL for (int i = 0; i < 4; i++) {
          *(float4*)u[i] = *(const float4*)(X + (m + i) * M);
          *(float4*)(u[i] + 4) = *(const float4*)(X + (m + i) * M + 4);
          *(float4*)v[i] = *(const float4*)(E + (m + i) * N);
        }
        UNROLL for (int i = 0; i < 8; i++)
          UNROLL for (int c = 0; c < 4; c++) {
            const float four = (u[0][i] * v[0][c] + u[1][i] * v[1][c]) + (u[2][i] * v[2][c] + u[3][i] * v[3][c]);
            float& eight = eights[m / 8][i][c];
            eight = m % 8 ? eight + four : four;
          }
      }
      UNROLL for (int i = 0; i < 8; i++)
        UNROLL for (int c = 0; c < 4; c++) sum[i][c] = sum[i][c] + (eights[0][i][c] + eights[1][i][c]);
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    const bool last = pair == pairs - 1;
    auto join = [&](int level) {
      UNROLL for (int i = 0; i < 8; i++) {
        float before[4];
        *(float4*)before = waiting[(level * 8 + i) * T];
        UNROLL for (int c = 0; c < 4; c++) sum[i][c] = before[c] + sum[i][c];
      }
    };
    auto leave = [&](int level) {
      UNROLL for (int i = 0; i < 8; i++) waiting[(level * 8 + i) * T] = *(float4*)sum[i];
    };
    if (pair & 1) join(0);
    else if (!last) leave(0);
    if ((pair & 1) || last) {
      if (pair & 2) join(1);
      else if (!last) leave(1);
    }
  }
  const int n = n0 + own.column * 4;
  float* const out = p.out + ((i64)b * p.parts + blockIdx.y) * p.stride + p.at[l] + n;
  const bool whole = width % 4 == 0 && lies_in_fours(out);
  UNROLL for (int i = 0; i < 8; i++) {
    const int k = k0 + own.row * 8 + i;
    alignas(16) float found[4];
    UNROLL for (int c = 0; c < 4; c++) found[c] = p.parts == 1 ? mean_of(sum[i][c], p.mu) : sum[i][c];
    if (k <= inputs && n < width) write_four(out + (i64)k * width, found, width - n, whole);
  }
}

KERNEL(gradient_64, Gradients, 128, 4 * (3 * 16 * (64 + 64) + 2 * 8 * 128 * 4 + 2 * 128)) { gradient<64>(p); }
KERNEL(gradient_32, Gradients, 64, 4 * (3 * 16 * (64 + 32) + 2 * 8 * 64 * 4 + 2 * 128)) { gradient<32>(p); }

// At most 8 samples: a thread has ROWS rows of one column, without shared memory.
template <int MU> DEVICE void thin_gradient(const Gradients& p) {
  const Strip strip = strip_of(p);
  if (strip.count <= 0) return;
  float sums[ROWS];
  strip_gradient<MU>(p, strip, blockIdx.z, sums);
  float* const out = p.out + blockIdx.z * p.stride + strip.place;
  for (int i = 0; i < strip.count; i++) out[(i64)i * strip.width] = sums[i];
}

KERNEL(gradient_thin_1, Gradients, 128, 0) { thin_gradient<1>(p); }
KERNEL(gradient_thin_2, Gradients, 128, 0) { thin_gradient<2>(p); }
KERNEL(gradient_thin_4, Gradients, 128, 0) { thin_gradient<4>(p); }
KERNEL(gradient_thin_8, Gradients, 128, 0) { thin_gradient<8>(p); }

struct Parts {
  const float* sums;  // (B, parts, stride)
  float* out;         // (B, stride)
  i64 stride;
  i64 size;           // of a gradient: what is behind it, up to the next one, is nothing
  int mu;
  int parts;
};

KERNEL(sum_parts, Parts, 128, 0) {
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i >= p.size) return;
  const float total = tree_of(p.sums + (i64)blockIdx.z * p.parts * p.stride + i, p.stride, p.parts);
  p.out[blockIdx.z * p.stride + i] = mean_of(total, p.mu);
}
