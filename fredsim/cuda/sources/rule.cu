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
DEVICE void apply_pushes(float* const* arrays, const Apply& p) {
  const i64 begin = blockIdx.x * (i64)512 + threadIdx.x;
  float values[4][ARRAYS];
  int worst = p.events;
  UNROLL for (int n = 0; n < 4; n++)
    UNROLL for (int a = 0; a < ARRAYS; a++)
      values[n][a] = begin + 128 * n < p.size ? arrays[a][begin + 128 * n] : 0.0f;
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
      if (begin + 128 * n < p.size) arrays[a][begin + 128 * n] = values[n][a];
  if (worst < p.events) lower(p.diverged_at, p.first + worst);
}

KERNEL(apply, Apply, 128, 0) { apply_pushes(p.arrays, p); }

// The same for R runs side by side, each with a row of blocks, its own arrays and its own pushes, which are among the n
// pushes of all runs and windows.
struct ApplyRuns {
  float* const* arrays;       // (R, ARRAYS): θ and the state of each run, (size,) each
  const float* gradients;     // of the window's pushes, `stride` elements apart
  const float* coefficients;  // (n, COEFFICIENTS)
  float* const* targets;      // (n,)
  const int* begins;          // (R + 1,): where each run's pushes of this window begin, and where the last one's end
  int* diverged_at;           // (R,): of each run the first push, among n, after which θ is not finite
  i64 size;
  i64 stride;
  int window;                 // where the pushes of the window begin, of which the first has the first gradient
};

KERNEL(apply_runs, ApplyRuns, 128, 0) {
  const int r = blockIdx.y, first = read(p.begins + r), events = read(p.begins + r + 1) - first;
  Apply own;
  own.gradients = p.gradients + (first - p.window) * p.stride;
  own.coefficients = p.coefficients + (i64)first * COEFFICIENTS;
  own.targets = p.targets + first;
  own.diverged_at = p.diverged_at + r;
  own.size = p.size;
  own.stride = p.stride;
  own.first = first;
  own.events = events;
  if (events > 0) apply_pushes(p.arrays + r * ARRAYS, own);
}
