// Embedding bags on a GPU: all tables of a model in one launch.
//
// A group of LANES threads sums a run of consecutive bags of one table, VEC elements per thread. The
// host has already turned ids into row numbers, hottest first: rows below `hot_rows` lie in the packed
// hot region, the others behind `cold`. Numbers of consecutive bags lie side by side, so "DISTANCE
// rows ahead" is an index and crosses bags; nothing is read at or behind the end of a run.
//
// Defines choose the technique (bags.rs passes them):
//   AHEAD        how rows are fetched ahead of their use
//   DISTANCE     how many rows ahead
//   VEC          elements per thread and load: 1 or 4
//   LANES        threads per row: a power of two up to 32
//   POLICY       1: hot rows are loaded to stay in L2 (evict_last), cold rows to leave first
//   THREADS      threads per block
//   MIN_BLOCKS   blocks that must fit an SM, which caps registers; 0: no cap. Never combined with
//                -maxrregcount, which __launch_bounds__ overrides silently.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define AHEAD_NONE 0
#define AHEAD_REGISTER 1
#define AHEAD_SHARED 2
#define AHEAD_LOCAL 3
#define AHEAD_L1 4
#define AHEAD_L2 5

#ifndef AHEAD
#define AHEAD AHEAD_NONE
#endif
#ifndef DISTANCE
#define DISTANCE 4
#endif
#ifndef VEC
#define VEC 4
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef POLICY
#define POLICY 0
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 0
#endif

#if VEC == 1 && (AHEAD != AHEAD_NONE || POLICY)
#error "single elements are the baseline: they are neither fetched ahead nor pinned"
#endif

#if MIN_BLOCKS > 0
#define BOUNDS __launch_bounds__(THREADS, MIN_BLOCKS)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

// Up to LANES * VEC adjacent elements of the rows of one table. The pointers include the place of the
// first element in a row, and `cold` is where row 0 would lie, were the hot rows not elsewhere.
struct Slice {
    const u8 *hot;
    const u8 *cold;
    const u32 *params;  // half scale, half bias of each row: int8 only
    u32 hot_rows;
    u32 stride;  // bytes, a multiple of VEC elements
    u32 width;   // elements
    u32 table;   // whose bags
    u32 column;  // first element in a row of the output
    u32 unused;
};

struct Batch {
    const u32 *rows;       // row numbers of all bags, table after table
    const u32 *starts;     // tables * bags + 1 places in `rows`
    const float *weights;  // one per row number: weighted sums only
    const float *scales;   // one per bag: 1 / count for means
    float *out;
    u32 bags;  // per table
    u32 out_stride;
    u32 bags_per_group;
    u32 unused;
};

enum Mode { SUM, WEIGHTED, MAX };

struct F32 {};
struct F16 {};
struct Int8 {};

// What a thread holds of a row: VEC elements as they are stored.
template <class T> struct Piece;
#if VEC == 4
template <> struct Piece<F32> { float4 raw; };
template <> struct Piece<F16> { uint2 raw; };
template <> struct Piece<Int8> { u32 raw; u32 params; };
#else
template <> struct Piece<F32> { float raw; };
template <> struct Piece<F16> { u16 raw; };
template <> struct Piece<Int8> { u8 raw; u32 params; };
#endif

__device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

#if POLICY
__device__ __forceinline__ u64 policy_last() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ u64 policy_first() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void read(float4 &to, const u8 *from, u64 policy) {
    asm volatile("ld.global.nc.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=f"(to.x), "=f"(to.y), "=f"(to.z), "=f"(to.w) : "l"(from), "l"(policy));
}
__device__ __forceinline__ void read(uint2 &to, const u8 *from, u64 policy) {
    asm volatile("ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                 : "=r"(to.x), "=r"(to.y) : "l"(from), "l"(policy));
}
__device__ __forceinline__ void read(u32 &to, const u8 *from, u64 policy) {
    asm volatile("ld.global.nc.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(to) : "l"(from), "l"(policy));
}
#endif

// One thread's view of a slice.
struct Reader {
    const u8 *hot;
    const u8 *cold;
    const u32 *params;
    u32 hot_rows;
    u32 stride;
    u32 lane;
#if POLICY
    u64 last;
    u64 first;
#endif

    template <class T> __device__ __forceinline__ static u32 bytes();

    __device__ __forceinline__ const u8 *address(u32 row) const {
        return (row < hot_rows ? hot : cold) + (u64)row * stride;
    }

    template <class T> __device__ __forceinline__ void load(Piece<T> &piece, u32 row) const {
#if POLICY
        // Two loads, not one with a chosen policy: the machine wants the policy in a uniform register.
        if (row < hot_rows) read(piece.raw, address(row), last);
        else read(piece.raw, address(row), first);
#else
        piece.raw = __ldg((const decltype(piece.raw) *)address(row));
#endif
        load_params(piece, row);
    }

    template <class T> __device__ __forceinline__ void load_params(Piece<T> &, u32) const {}
    __device__ __forceinline__ void load_params(Piece<Int8> &piece, u32 row) const {
        piece.params = __ldg(params + row);
    }
};

template <> __device__ __forceinline__ u32 Reader::bytes<F32>() { return VEC * 4; }
template <> __device__ __forceinline__ u32 Reader::bytes<F16>() { return VEC * 2; }
template <> __device__ __forceinline__ u32 Reader::bytes<Int8>() { return VEC; }

// The elements of a piece as floats; int8 without scale and bias.
#if VEC == 4
__device__ __forceinline__ void widen(const Piece<F32> &piece, float (&x)[VEC]) {
    x[0] = piece.raw.x, x[1] = piece.raw.y, x[2] = piece.raw.z, x[3] = piece.raw.w;
}
__device__ __forceinline__ void widen(const Piece<F16> &piece, float (&x)[VEC]) {
    x[0] = half_to_float((u16)piece.raw.x), x[1] = half_to_float((u16)(piece.raw.x >> 16));
    x[2] = half_to_float((u16)piece.raw.y), x[3] = half_to_float((u16)(piece.raw.y >> 16));
}
__device__ __forceinline__ void widen(const Piece<Int8> &piece, float (&x)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) x[i] = (float)((piece.raw >> (8 * i)) & 255u);
}
#else
__device__ __forceinline__ void widen(const Piece<F32> &piece, float (&x)[VEC]) { x[0] = piece.raw; }
__device__ __forceinline__ void widen(const Piece<F16> &piece, float (&x)[VEC]) {
    x[0] = half_to_float(piece.raw);
}
__device__ __forceinline__ void widen(const Piece<Int8> &piece, float (&x)[VEC]) {
    x[0] = (float)(u32)piece.raw;
}
#endif

// The bag at hand of a run: its sum, its end, and where it is written to.
template <class T, Mode MODE> struct Pool {
    float sum[VEC];
    float bias;
    u32 bag;
    u32 last;
    u32 end;
    const Batch &batch;
    u32 table;
    u32 column;
    u32 width;

    __device__ __forceinline__ Pool(const Batch &batch, u32 table, u32 column, u32 width, u32 first, u32 last)
        : bag(first), last(last), batch(batch), table(table), column(column), width(width) {
        end = __ldg(batch.starts + (table * batch.bags + first + 1));
        clear();
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] = MODE == MAX ? __int_as_float(0xff800000) : 0.0f;
        bias = 0.0f;
    }

    __device__ __forceinline__ static void dequantiser(const Piece<Int8> &piece, float &scale, float &bias) {
        scale = half_to_float((u16)piece.params);
        bias = half_to_float((u16)(piece.params >> 16));
    }
    template <class Other>
    __device__ __forceinline__ static void dequantiser(const Piece<Other> &, float &scale, float &bias) {
        scale = 1.0f, bias = 0.0f;
    }

    // Adds the row at place `p`. The operations and their order are those of the CPU's reference.
    __device__ __forceinline__ void add(const Piece<T> &piece, u32 p) {
        float x[VEC], row_scale, row_bias;
        widen(piece, x);
        dequantiser(piece, row_scale, row_bias);
        const bool is_quantised = sizeof(Piece<T>) != sizeof(piece.raw);
        const float weight = MODE == WEIGHTED ? __ldg(batch.weights + p) : 1.0f;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (MODE == MAX) sum[i] = fmaxf(sum[i], is_quantised ? fmaf(x[i], row_scale, row_bias) : x[i]);
            else if (is_quantised) sum[i] = fmaf(x[i], row_scale * weight, sum[i]);
            else if (MODE == WEIGHTED) sum[i] = fmaf(x[i], weight, sum[i]);
            else sum[i] += x[i];
        }
        if (is_quantised && MODE != MAX) bias = fmaf(row_bias, weight, bias);
    }

    // Writes all bags that end at place `p`, empty ones too.
    __device__ __forceinline__ void close(u32 p, u32 lane) {
        while (bag < last && end == p) {
            const u32 at = table * batch.bags + bag;
            const bool is_empty = __ldg(batch.starts + at) == p;
            const float scale = __ldg(batch.scales + at);
            float *to = batch.out + (u64)bag * batch.out_stride + column + lane * VEC;
            float y[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (MODE == MAX) y[i] = is_empty ? 0.0f : sum[i];
                else if (sizeof(Piece<T>) != sizeof(Piece<T>::raw)) y[i] = (sum[i] + bias) * scale;
                else y[i] = sum[i] * scale;
            }
            store(to, y, lane);
            clear();
            if (++bag < last) end = __ldg(batch.starts + (at + 2));
        }
    }

    __device__ __forceinline__ void store(float *to, const float (&y)[VEC], u32 lane) const {
#if VEC == 4
        // Rows of the output are aligned only where all tables' dims are multiples of four.
        if (lane * VEC + VEC <= width && ((u64)to & 15) == 0) {
            // The compiler splits a plain vector store here, to share it with the scalar ones.
            asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                         ::"l"(to), "f"(y[0]), "f"(y[1]), "f"(y[2]), "f"(y[3]) : "memory");
            return;
        }
#endif
#pragma unroll
        for (int i = 0; i < VEC; ++i)
            if (lane * VEC + i < width) to[i] = y[i];
    }
};

#if AHEAD == AHEAD_L1 || AHEAD == AHEAD_L2
// One request per 128-byte line, by the thread whose elements begin it.
template <class T> __device__ __forceinline__ void prefetch(const Reader &reader, u32 row) {
    const u8 *from = reader.address(row);
    if (reader.lane != 0 && ((u64)from & 127) >= Reader::bytes<T>()) return;
#if AHEAD == AHEAD_L1
    asm volatile("prefetch.global.L1 [%0];" ::"l"(from));
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
}
#endif

// All rows of a run through a pool; each technique fetches in its own way.
template <class T, Mode MODE>
__device__ __forceinline__ void walk(const Reader &reader, Pool<T, MODE> &pool, const u32 *rows, u32 begin, u32 end) {
    const u32 lane = reader.lane;
    pool.close(begin, lane);
#if AHEAD == AHEAD_REGISTER
    Piece<T> slot[DISTANCE];
#pragma unroll
    for (u32 i = 0; i < DISTANCE; ++i)
        if (begin + i < end) reader.load(slot[i], __ldg(rows + begin + i));
    // The number of the row to fetch is itself read one row early.
    u32 next = begin + DISTANCE < end ? __ldg(rows + begin + DISTANCE) : 0;
#pragma unroll 1
    for (u32 first = begin; first < end; first += DISTANCE) {
        // Slots are named at compile time: moving a register waits for the load that fills it.
#pragma unroll
        for (u32 i = 0; i < DISTANCE; ++i) {
            const u32 p = first + i;
            if (p >= end) break;
            pool.add(slot[i], p);
            if (p + DISTANCE < end) reader.load(slot[i], next);
            if (p + DISTANCE + 1 < end) next = __ldg(rows + p + DISTANCE + 1);
            pool.close(p + 1, lane);
        }
    }
#elif AHEAD == AHEAD_SHARED || AHEAD == AHEAD_LOCAL
    // A store waits for the load before it, so all loads of a batch are issued before the first store.
#if AHEAD == AHEAD_SHARED
    __shared__ Piece<T> ring[DISTANCE][THREADS];
#define SLOT(i) ring[i][threadIdx.x]
#else
    Piece<T> ring[DISTANCE];
#define SLOT(i) ring[i]
#endif
#pragma unroll 1
    for (u32 first = begin; first < end; first += DISTANCE) {
        Piece<T> loaded[DISTANCE];
#pragma unroll
        for (u32 i = 0; i < DISTANCE; ++i)
            if (first + i < end) reader.load(loaded[i], __ldg(rows + first + i));
#pragma unroll
        for (u32 i = 0; i < DISTANCE; ++i)
            if (first + i < end) SLOT(i) = loaded[i];
        const u32 count = end - first < DISTANCE ? end - first : DISTANCE;
#pragma unroll 1
        for (u32 i = 0; i < count; ++i) {
            const Piece<T> piece = SLOT(i);
            pool.add(piece, first + i);
            pool.close(first + i + 1, lane);
        }
    }
#else
    u32 row = begin < end ? __ldg(rows + begin) : 0;
#if AHEAD == AHEAD_L1 || AHEAD == AHEAD_L2
#pragma unroll 1
    for (u32 p = begin + 1; p < end && p < begin + DISTANCE; ++p) prefetch<T>(reader, __ldg(rows + p));
    u32 next = begin + DISTANCE < end ? __ldg(rows + begin + DISTANCE) : 0;
#endif
    // The unroll is stated: left to itself the compiler unrolls, which is a technique of its own.
#pragma unroll 1
    for (u32 p = begin; p < end; ++p) {
#if AHEAD == AHEAD_L1 || AHEAD == AHEAD_L2
        if (p + DISTANCE < end) prefetch<T>(reader, next);
        if (p + DISTANCE + 1 < end) next = __ldg(rows + p + DISTANCE + 1);
#endif
        Piece<T> piece;
        reader.load(piece, row);
        if (p + 1 < end) row = __ldg(rows + p + 1);
        pool.add(piece, p);
        pool.close(p + 1, lane);
    }
#endif
}

template <class T, Mode MODE>
__device__ __forceinline__ void bags(const Batch &batch, const Slice *slices) {
    const Slice slice = slices[blockIdx.y];
    const u32 group = (blockIdx.x * THREADS + threadIdx.x) / LANES;
    const u32 lane = threadIdx.x % LANES;
    const u32 first = group * batch.bags_per_group;
    if (first >= batch.bags || lane * VEC >= slice.width) return;
    const u32 last = batch.bags - first < batch.bags_per_group ? batch.bags : first + batch.bags_per_group;

    Reader reader;
    reader.hot = slice.hot + lane * Reader::bytes<T>();
    reader.cold = slice.cold + lane * Reader::bytes<T>();
    reader.params = slice.params;
    reader.hot_rows = slice.hot_rows;
    reader.stride = slice.stride;
    reader.lane = lane;
#if POLICY
    reader.last = policy_last();
    reader.first = policy_first();
#endif
    const u32 begin = __ldg(batch.starts + (slice.table * batch.bags + first));
    const u32 end = __ldg(batch.starts + (slice.table * batch.bags + last));
    Pool<T, MODE> pool(batch, slice.table, slice.column, slice.width, first, last);
    walk(reader, pool, batch.rows, begin, end);
}

#define KERNEL(NAME, TYPE, MODE)                                                                     \
    extern "C" __global__ void BOUNDS NAME(const Batch batch, const Slice *__restrict__ slices) {    \
        bags<TYPE, MODE>(batch, slices);                                                             \
    }
KERNEL(bags_fp32_sum, F32, SUM)
KERNEL(bags_fp32_weighted, F32, WEIGHTED)
KERNEL(bags_fp32_max, F32, MAX)
KERNEL(bags_fp16_sum, F16, SUM)
KERNEL(bags_fp16_weighted, F16, WEIGHTED)
KERNEL(bags_fp16_max, F16, MAX)
KERNEL(bags_int8_sum, Int8, SUM)
KERNEL(bags_int8_weighted, Int8, WEIGHTED)
KERNEL(bags_int8_max, Int8, MAX)

// Reads the packed hot rows into L2 so that they stay there: once, before the first lookup.
extern "C" __global__ void __launch_bounds__(256) pin(const u8 *hot, u64 bytes) {
    for (u64 at = ((u64)blockIdx.x * 256 + threadIdx.x) * 32; at < bytes; at += (u64)gridDim.x * 256 * 32)
        asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(hot + at));
}
