// What kernels that are checked tell the checker (checker.cpp). It stands before all else that is compiled, so that
// fredsim/cuda/sources/emulate.h finds its macros here.
struct Running {  // a block
  const void* kernel;
  unsigned long long stream, number, blocks;  // its own number among the blocks of the launch
  const unsigned* thread;                     // whose turn it is
  unsigned threads;
  unsigned char* shared;
  unsigned long long shared_bytes;
};
extern "C" {
void checker_block(const Running* block);
void checker_block_end();
void checker_barrier();
void checker_read(const void* at, unsigned long long size);
void checker_copy(float* to, const float* from, int count);  // `from` is null if zeros are written
void checker_copied(float* to, int count);
}

#define ON_BLOCK(kernel, stream)                                                                              \
  const unsigned long long row = blockIdx.y + gridDim.y * (unsigned long long)blockIdx.z;                     \
  const Running block = {kernel, (unsigned long long)stream, blockIdx.x + gridDim.x * row,                    \
                         gridDim.x * (unsigned long long)gridDim.y * gridDim.z, &threadIdx.x, blockDim.x,     \
                         shared_memory, (unsigned long long)(kernel)->bytes};                                 \
  checker_block(&block)
#define ON_BLOCK_END() checker_block_end()
#define ON_BARRIER() checker_barrier()
#define ON_READ(at) checker_read(at, sizeof *(at))
#define ON_COPY(copy) checker_copy((copy).to, (copy).valid ? (copy).from : nullptr, (copy).count)
#define ON_COPIED(copy) checker_copied((copy).to, (copy).count)
