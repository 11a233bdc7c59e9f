// What the kernels of rule_thin.cu and rule_wide.cu take.
#include "gradients.h"

struct ApplyThin {
  Gradients minibatches;      // of all pushes
  float* arrays[ARRAYS];      // θ and the state
  const float* coefficients;  // (events, COEFFICIENTS)
  float* const* targets;      // (events,): where θ is written after a push, unless it is null
  int* diverged_at;           // becomes at most first + e if θ is not finite after push e
  int first;
  int events;
};

// The same for R runs side by side: see ApplyRuns in rule.cu.
struct ApplyThinRuns {
  Gradients minibatches;      // of the window's pushes
  float* const* arrays;       // (R, ARRAYS): θ and the state of each run
  const float* coefficients;  // (n, COEFFICIENTS)
  float* const* targets;      // (n,)
  const int* begins;          // (R + 1,): where each run's pushes of this window begin, and where the last one's end
  int* diverged_at;           // (R,)
  int window;                 // where the pushes of the window begin, of which the first has the first minibatch
};

// What a run pushes in this window.
DEVICE ApplyThin pushes_of(const ApplyThinRuns& p, int run) {
  ApplyThin own;
  own.first = read(p.begins + run);
  own.events = read(p.begins + run + 1) - own.first;
  own.coefficients = p.coefficients + (i64)own.first * COEFFICIENTS;
  own.targets = p.targets + own.first;
  own.diverged_at = p.diverged_at + run;
  return own;
}
