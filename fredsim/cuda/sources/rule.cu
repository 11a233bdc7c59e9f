// A server's elementwise rule, applied for several pushes in turn; θ and state stay in registers from push to push.
// There are no sums here. fredsim/cuda/rules.py puts these before this file, made from the rule:
//   #define ARRAYS …         how many arrays the rule changes: θ and the state
//   #define COEFFICIENTS …   how many coefficients a push has
//   DEVICE void rule(float* values, float g, const float* coefficients)      changes `values` (ARRAYS,)
struct Apply {
  float* arrays[ARRAYS];      // θ and the state, (size,) each
  const float* gradients;     // one a push, `stride` elements apart
  const float* coefficients;  // (events, COEFFICIENTS)
  float* const* targets;      // (events,): where θ is written after a push, unless it is null
  int* diverged_at;           // becomes at most first + e if θ is not finite after push e
  i64 size;
  i64 stride;
  int first;
  int events;
};

// A thread has four elements, 128 apart.
KERNEL(apply, Apply, 128, 0) {
  const i64 begin = blockIdx.x * (i64)512 + threadIdx.x;
  float values[4][ARRAYS];
  int worst = p.events;
  UNROLL for (int n = 0; n < 4; n++)
    UNROLL for (int a = 0; a < ARRAYS; a++)
      values[n][a] = begin + 128 * n < p.size ? p.arrays[a][begin + 128 * n] : 0.0f;
  UNROLL_LITTLE for (int e = 0; e < p.events; e++) {
    const float* const g = p.gradients + e * p.stride;
    float* const target = read(p.targets + e);
    float coefficients[COEFFICIENTS + 1];
    UNROLL for (int c = 0; c < COEFFICIENTS; c++) coefficients[c] = read(p.coefficients + e * COEFFICIENTS + c);
    UNROLL for (int n = 0; n < 4; n++) {
      const i64 i = begin + 128 * n;
      if (i >= p.size) continue;
      rule(values[n], read(g + i), coefficients);
      const float theta = values[n][0];
      if (theta * 0.0f != 0.0f) worst = smaller(worst, e);
      if (target) target[i] = theta;
    }
  }
  UNROLL for (int n = 0; n < 4; n++)
    UNROLL for (int a = 0; a < ARRAYS; a++)
      if (begin + 128 * n < p.size) p.arrays[a][begin + 128 * n] = values[n][a];
  if (worst < p.events) lower(p.diverged_at, p.first + worst);
}
