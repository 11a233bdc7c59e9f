// The balanced binary tree over leaves in memory.
#include "common.h"

// The sum of `count` leaves from + i·stride, without the last + 0; of no leaves it is +0. Eight are read at once. A leaf
// beyond the last one is +0, which changes no sum but −0.
DEVICE float tree_of(const float* from, i64 stride, int count) {
  constexpr int LEVELS = 18;
  float waiting[LEVELS], total = 0.0f;
  UNROLL for (int l = 0; l < LEVELS; l++) waiting[l] = 0.0f;
  const int eights = (count + 7) / 8;
  for (int eight = 0; eight < eights; eight++) {
    float leaves[8];
    UNROLL for (int i = 0; i < 8; i++) leaves[i] = 8 * eight + i < count ? read(from + (8 * eight + i) * stride) : 0.0f;
    UNROLL for (int apart = 1; apart < 8; apart *= 2)
      UNROLL for (int i = 0; i < 8; i += 2 * apart) leaves[i] = leaves[i] + leaves[i + apart];
    float sum = leaves[0];
    bool going = true;
    UNROLL for (int l = 0; l < LEVELS; l++) {
      if (going && (eight >> l & 1)) sum = waiting[l] + sum;
      else if (going) {
        waiting[l] = sum;
        going = false;
      }
    }
  }
  bool any = false;
  UNROLL for (int l = 0; l < LEVELS; l++)
    if (eights >> l & 1) {
      total = any ? waiting[l] + total : waiting[l];
      any = true;
    }
  return total;
}
