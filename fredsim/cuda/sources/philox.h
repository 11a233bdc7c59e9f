// Random numbers of a counter: fredsim.numerics.streams.

// Word `lane` of Philox4x32-10 for a counter of four words and a key of two.
DEVICE u32 random_word(const u32* counter, u32 k0, u32 k1, int lane) {
  u32 c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  UNROLL for (int round = 0; round < 10; round++) {
    const u32 high0 = high_half(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const u32 high1 = high_half(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return lane == 0 ? c0 : lane == 1 ? c1 : lane == 2 ? c2 : c3;
}
