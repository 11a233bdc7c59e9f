// Checks what emulated kernels (fredsim/cuda/sources/emulate.h) do with the memory of a device: whether they stay
// within arrays, and whether every two accesses to a number are in order if one of them writes it.
//
// The kernels are compiled with -fsanitize=thread: each access is a call of a function of the thread sanitizer, and
// these functions stand here, in place of its own. hooks.h tells the rest. In order are
// - accesses of a thread, and those of a block's threads that have a barrier between them;
// - launches on one stream, and what the host waits for, or queues for all streams, with all before and behind it;
// and no others, whatever order the emulation has: so a race is found whether or not it changes a bit.
//
// A cell for each number keeps the last access that read it and the last that wrote it. Numbers of one byte have cells
// of their own, those of eight two: a number is written and read as one of the same size, or as several of four bytes.
#include "hooks.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
using std::string;
using std::to_string;

enum Apart : u8 { IN_ORDER, THREADS, BLOCKS, STREAMS };  // of what two accesses are that nothing orders
struct Access {
  u32 launch, block, epoch;  // launches count from 1; the epoch is the number of barriers that the thread has come to
  u16 thread;
  Apart others;              // of what others are for which it stands, since nothing orders it and them
  bool atomic;               // whether it and they are
};
struct Cell {
  Access read, written;
  u32 fixed;  // the last launch in which read() has read it, perhaps earlier than it is written there
};
struct Memory {
  u8* begin;
  u64 size;
  Cell *words, *bytes;
};
struct Launch {
  u64 stream;
  u32 period;  // what is of another period is in order with it
};

// ---- what there is
static const u64 ROOM = 32ull << 30, PAGE = 4096, MOST_SHARED = 224 << 10, MOST_THREADS = 1024;
static u8* room;  // where all arrays are, each on pages of its own, with at least one between it and the next
static u64 used = PAGE;
static Memory** pages;
static Memory nowhere, shared = {nullptr, 0, new Cell[MOST_SHARED / 4](), new Cell[MOST_SHARED]()};
static bool copied_to[MOST_SHARED / 4];  // the words of shared memory to which a copy is under way
static std::vector<Launch> launches(1);
static u32 period, epochs[MOST_THREADS];
static Running running;  // a block; no kernel: none is
static std::mutex launching;
static string kernel;
static std::set<string> ran;
static std::map<string, string> found;  // what is wrong, by kernel and fault, and the first example

static Access current(bool atomic) {
  const u16 thread = *running.thread;
  return {(u32)launches.size() - 1, (u32)running.number, epochs[thread], thread, IN_ORDER, atomic};
}
static string in_words(const Access& access) {
  const string words = "thread " + to_string(access.thread) + " of block " + to_string(access.block);
  return access.launch == launches.size() - 1 ? words : words + " of an earlier launch";
}
static void report(const char* fault, const string& example) { found.emplace(kernel + "\t" + fault, example); }

// ---- the order of accesses to a number
static Apart apart(const Access& then, const Access& now) {
  if (!then.launch) return IN_ORDER;
  const Launch &one = launches[then.launch], &other = launches[now.launch];
  if (one.period == other.period && (one.stream != other.stream || then.others == STREAMS)) return STREAMS;
  if (then.launch != now.launch) return IN_ORDER;
  if (then.block != now.block || then.others == BLOCKS) return BLOCKS;
  return then.epoch == now.epoch && (then.thread != now.thread || then.others == THREADS) ? THREADS : IN_ORDER;
}
static void compare(const Access& then, const Access& now, const char* words) {
  static const char* const FAULTS[] = {"", "race of threads", "race of blocks", "race of streams"};
  const Apart how = apart(then, now);
  if (how && !(then.atomic && now.atomic)) report(FAULTS[how], in_words(now) + words + in_words(then));
}
static void touch(Cell& cell, bool writes, bool atomic, bool in_shared) {
  Access now = current(atomic);
  if (in_shared)  // what an earlier block has done there is over
    for (Access* last : {&cell.read, &cell.written})
      if (last->launch != now.launch || last->block != now.block) last->launch = 0;
  compare(cell.written, now, writes ? " writes what is written by " : " reads what is written by ");
  if (writes) compare(cell.read, now, " writes what is read by ");
  if (writes && cell.fixed == now.launch) report("read() of what the launch writes", in_words(now) + " writes it");
  Access& last = writes ? cell.written : cell.read;
  now.others = apart(last, now);
  now.atomic = atomic && (!now.others || last.atomic);
  last = now;
}

// ---- one access
static const Memory* memory_of(const void* at) {  // null if it is none that threads share
  if ((u64)at - (u64)running.shared < MOST_SHARED) return &shared;
  if (!room || (u64)at - (u64)room >= ROOM) return nullptr;
  const Memory* const memory = pages[((u64)at - (u64)room) / PAGE];
  return memory ? memory : &nowhere;
}
static void check(const void* address, u64 size, bool writes, bool atomic = false) {
  const Memory* const memory = running.kernel ? memory_of(address) : nullptr;
  if (!memory) return;
  const bool in_shared = memory == &shared;
  const u64 at = (u64)address - (u64)memory->begin;
  auto fault = [&](const char* what) {
    const string begin = memory == &nowhere ? "" : " at byte " + to_string(at) + " of " + to_string(memory->size);
    report(what, in_words(current(false)) + (writes ? " writes " : " reads ") + to_string(size) + " bytes" + begin);
  };
  if (memory == &nowhere) return fault("outside of all arrays");
  if (at + size > memory->size) return fault(in_shared ? "beyond its shared memory" : "beyond an array");
  if ((u64)address % size) return fault("misaligned");
  if (in_shared && copied_to[at / 4]) fault("a copy that is not waited for");
  Cell* const cells = size < 4 ? memory->bytes + at : memory->words + at / 4;
  for (u64 cell = 0; cell < (size < 4 ? size : size / 4); cell++) touch(cells[cell], writes, atomic, in_shared);
}
static void mark(float* to, int count, bool under_way) {
  for (float* word = to; word < to + count; word++)
    if ((u64)word - (u64)shared.begin < shared.size) copied_to[word - (float*)shared.begin] = under_way;
}

// ---- what emulate.h tells
extern "C" {
void checker_block(const Running* block) {
  if (block->number == 0) {
    launching.lock();
    Dl_info known;
    kernel = dladdr(block->kernel, &known) && known.dli_sname ? known.dli_sname : "?";
    ran.insert(kernel);
    if (!block->stream || !launches.back().stream) period++;
    launches.push_back({block->stream, period});
  }
  running = *block;
  shared.begin = block->shared, shared.size = block->shared_bytes;
  memset(copied_to, 0, sizeof copied_to);
  memset(epochs, 0, sizeof epochs);
}
void checker_block_end() {
  for (u32 t = 1; t < running.threads; t++)
    if (epochs[t] != epochs[0])
      report("a barrier to which not all threads come",
             "of block " + to_string(running.number) + ", thread 0 comes to " + to_string(epochs[0]) +
                 " barriers, and thread " + to_string(t) + " to " + to_string(epochs[t]));
  running.kernel = nullptr;
  if (running.number + 1 == running.blocks) launching.unlock();
}
void checker_barrier() { epochs[*running.thread]++; }
void checker_read(const void* address, u64 size) {  // of it, its access is told, too
  const Memory* const memory = memory_of(address);
  const u64 at = memory ? (u64)address - (u64)memory->begin : 0;
  if (!memory || at + size > memory->size) return;
  for (u64 word = at / 4; word < (at + size) / 4; word++) {
    Cell& cell = memory->words[word];
    const Access now = current(false);
    cell.fixed = now.launch;
    if (cell.written.launch == now.launch)
      report("read() of what the launch writes", in_words(now) + " reads what is written by " + in_words(cell.written));
  }
}
void checker_copy(float* to, const float* from, int count) {
  if (from) check(from, 4 * count, false);
  check(to, 4 * count, true);
  mark(to, count, true);
}
void checker_copied(float* to, int count) { mark(to, count, false); }  // the accesses to both are told now

// ---- what Python asks for (checked.py)
void* checker_allocate(u64 size) {  // null if there is no room
  if (!room) {
    void* const all = mmap(nullptr, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return nullptr;
    room = (u8*)all;
    pages = (Memory**)calloc(ROOM / PAGE, sizeof *pages);
  }
  const u64 span = (size + PAGE - 1) / PAGE;
  if (used + (span + 1) * PAGE > ROOM) return nullptr;
  Cell* const words = (Cell*)calloc(size / 4 + 1, sizeof *words);
  Cell* const bytes = (Cell*)calloc(size + 1, sizeof *bytes);
  Memory* const memory = new Memory{room + used, size, words, bytes};
  for (u64 page = 0; page < span; page++) pages[used / PAGE + page] = memory;
  used += (span + 1) * PAGE;
  memset(memory->begin, 0xff, size);
  return memory->begin;
}
void checker_free(u8* address, u64 size) {
  if (!size) return;
  Memory** const first = pages + (address - room) / PAGE;
  Memory* const memory = *first;
  const u64 span = (size + PAGE - 1) / PAGE;
  for (u64 page = 0; page < span; page++) first[page] = nullptr;
  madvise(address, span * PAGE, MADV_DONTNEED);
  free(memory->words), free(memory->bytes);
  delete memory;
}
void checker_wait() { period++; }  // the host waits for all that is queued, or queues what is in order with all
const char* checker_found() {      // lines of a kernel, what is wrong with it and an example, by tabulators
  static string lines;
  lines.clear();
  for (const auto& one : found) lines += one.first + "\t" + one.second + "\n";
  return lines.c_str();
}
const char* checker_ran() {  // the names of kernels, by line feeds
  static string lines;
  lines.clear();
  for (const string& name : ran) lines += name + "\n";
  return lines.c_str();
}
void checker_forget() { found.clear(), ran.clear(); }

// ---- what compilers tell the thread sanitizer
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
static void check_range(const void* at, u64 size, bool writes) {  // of which nothing says that it is aligned
  const u64 step = size < 4 ? 1 : 4;
  for (u64 i = 0; i < size; i += step) check((const u8*)at + i, step, writes);
}
#define ACCESSES(size)                                                             \
  void __tsan_read##size(void* at) { check(at, size, false); }                     \
  void __tsan_write##size(void* at) { check(at, size, true); }                     \
  void __tsan_unaligned_read##size(void* at) { check_range(at, size, false); }     \
  void __tsan_unaligned_write##size(void* at) { check_range(at, size, true); }
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
void __tsan_read_range(const void* at, u64 size) { check_range(at, size, false); }
void __tsan_write_range(void* at, u64 size) { check_range(at, size, true); }
void* __tsan_memset(void* to, int value, u64 size) {  // clang's, as those that follow
  check_range(to, size, true);
  return memset(to, value, size);
}
void* __tsan_memcpy(void* to, const void* from, u64 size) {
  check_range(from, size, false), check_range(to, size, true);
  return memcpy(to, from, size);
}
void* __tsan_memmove(void* to, const void* from, u64 size) {
  check_range(from, size, false), check_range(to, size, true);
  return memmove(to, from, size);
}
u8 __tsan_atomic8_exchange(volatile u8* at, u8 value, int order) { return __atomic_exchange_n(at, value, order); }
void __tsan_atomic8_store(volatile u8* at, u8 value, int order) { __atomic_store_n(at, value, order); }
int __tsan_atomic32_load(const volatile int* at, int) {
  check((void*)at, 4, false, true);
  return *at;
}
void __tsan_atomic32_store(volatile int* at, int value, int) {
  check((void*)at, 4, true, true);
  *at = value;
}
}
