// Gradients of parameters from sums over groups of samples.
//
// The order of sums: the groups, whole subtrees of the balanced binary tree over the samples, are added by the tree;
// + 0 at the end, then ÷ µ once.
#include "tree.h"

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
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= p.number) return;
  const float total = tree_of(p.sums + (i64)blockIdx.z * p.groups * p.count + i, p.count, p.groups);
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
