// Gradients of parameters from sums over groups of samples.
//
// The order of sums: the groups, whole subtrees of the balanced binary tree over the samples, are added by the tree;
// + 0 at the end, then ÷ µ once.
#include "common.h"

struct Groups {
  const float* sums;  // (B, groups, count)
  float* out;         // (B, stride)
  i64 stride;
  i64 weight;         // where the first `size` numbers go, and where those after them
  i64 bias;
  int size;
  int number;         // how many of the `count` numbers there are means of
  int count;
  int groups;
  int mu;
};

KERNEL(mean_of_groups, Groups, 128, 0) {
  constexpr int LEVELS = 20;
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= p.number) return;
  const float* const from = p.sums + (i64)blockIdx.z * p.groups * p.count + i;
  float waiting[LEVELS], total = 0.0f;
  UNROLL for (int l = 0; l < LEVELS; l++) waiting[l] = 0.0f;
  for (int group = 0; group < p.groups; group++) {
    float sum = from[(i64)group * p.count];
    bool going = true;
    UNROLL for (int l = 0; l < LEVELS; l++) {
      if (going && (group >> l & 1)) sum = waiting[l] + sum;
      else if (going) {
        waiting[l] = sum;
        going = false;
      }
    }
  }
  bool any = false;
  UNROLL for (int l = 0; l < LEVELS; l++)
    if (p.groups >> l & 1) {
      total = any ? waiting[l] + total : waiting[l];
      any = true;
    }
  p.out[blockIdx.z * p.stride + (i < p.size ? p.weight + i : p.bias + (i - p.size))] = mean_of(total, p.mu);
}

struct Clear {
  float* out;  // (B, stride)
  i64 stride;
  i64 at;
  i64 count;
};

KERNEL(clear_gradients, Clear, 128, 0) {  // of tensors that have none
  const i64 i = blockIdx.x * (i64)128 + threadIdx.x;
  if (i < p.count) p.out[blockIdx.z * p.stride + p.at + i] = 0.0f;
}
