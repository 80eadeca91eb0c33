// The layers around the embedding bags, so that a whole model runs on the device: fully connected
// layers and the interaction of features. Simple tiles: in the models at hand these stages are small
// beside the tables.

typedef unsigned int u32;
typedef unsigned long long u64;

#define TILE 16

// y = activation(x wᵀ + bias): x is [rows, inputs], w is [outputs, inputs]. Blocks of TILE x TILE
// threads; grid (outputs / TILE, rows / TILE), rounded up. Products are added in order of inputs.
// activation: 0 none, 1 ReLU, 2 sigmoid.
extern "C" __global__ void __launch_bounds__(TILE * TILE)
linear(const float *__restrict__ x, const float *__restrict__ w, const float *__restrict__ bias,
       float *__restrict__ y, u32 rows, u32 inputs, u32 outputs, u32 x_stride, u32 y_stride, u32 activation) {
    __shared__ float x_tile[TILE][TILE + 1];
    __shared__ float w_tile[TILE][TILE + 1];
    const u32 tx = threadIdx.x, ty = threadIdx.y;
    const u32 row = blockIdx.y * TILE + ty;
    const u32 output = blockIdx.x * TILE + tx;
    const u32 w_row = blockIdx.x * TILE + ty;
    float sum = 0.0f;
    for (u32 first = 0; first < inputs; first += TILE) {
        const u32 input = first + tx;
        x_tile[ty][tx] = row < rows && input < inputs ? x[(u64)row * x_stride + input] : 0.0f;
        w_tile[ty][tx] = w_row < outputs && input < inputs ? w[(u64)w_row * inputs + input] : 0.0f;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < TILE; ++i) sum = fmaf(x_tile[ty][i], w_tile[tx][i], sum);
        __syncthreads();
    }
    if (row >= rows || output >= outputs) return;
    sum += bias[output];
    if (activation == 1) sum = fmaxf(sum, 0.0f);
    if (activation == 2) sum = __fdividef(1.0f, 1.0f + __expf(-sum));
    y[(u64)row * y_stride + output] = sum;
}

// Dense features followed by the dot products of all pairs of vectors i > j (i >= j with `itself`).
// Vector 0 is the dense one, the others are the pooled rows. One block per sample.
extern "C" __global__ void __launch_bounds__(256)
interact_dot(const float *__restrict__ dense, const float *__restrict__ pooled, float *__restrict__ out,
             u32 dim, u32 vectors, u32 dense_stride, u32 pooled_stride, u32 out_stride, u32 itself) {
    dense += (u64)blockIdx.x * dense_stride;
    pooled += (u64)blockIdx.x * pooled_stride;
    out += (u64)blockIdx.x * out_stride;
    for (u32 d = threadIdx.x; d < dim; d += blockDim.x) out[d] = dense[d];
    const u32 pairs = itself ? vectors * (vectors + 1) / 2 : vectors * (vectors - 1) / 2;
    for (u32 pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
        u32 i = itself ? 0 : 1, j = pair;
        while (j >= i + itself) j -= i + itself, ++i;
        const float *a = i == 0 ? dense : pooled + (u64)(i - 1) * dim;
        const float *b = j == 0 ? dense : pooled + (u64)(j - 1) * dim;
        float sum = 0.0f;
#pragma unroll 1
        for (u32 d = 0; d < dim; ++d) sum = fmaf(a[d], b[d], sum);
        out[dim + pair] = sum;
    }
}

// Dense features and pooled rows side by side. One block per sample.
extern "C" __global__ void __launch_bounds__(256)
interact_cat(const float *__restrict__ dense, const float *__restrict__ pooled, float *__restrict__ out,
             u32 dense_width, u32 pooled_width, u32 dense_stride, u32 pooled_stride, u32 out_stride) {
    dense += (u64)blockIdx.x * dense_stride;
    pooled += (u64)blockIdx.x * pooled_stride;
    out += (u64)blockIdx.x * out_stride;
#pragma unroll 1
    for (u32 d = threadIdx.x; d < dense_width; d += blockDim.x) out[d] = dense[d];
#pragma unroll 1
    for (u32 d = threadIdx.x; d < pooled_width; d += blockDim.x) out[dense_width + d] = pooled[d];
}

// The last step of a cross layer: x += first * gate, element by element. One block per sample.
extern "C" __global__ void __launch_bounds__(256)
interact_cross(const float *__restrict__ first, const float *__restrict__ gate, float *__restrict__ x,
               u32 width, u32 first_stride, u32 gate_stride, u32 x_stride) {
    first += (u64)blockIdx.x * first_stride;
    gate += (u64)blockIdx.x * gate_stride;
    x += (u64)blockIdx.x * x_stride;
#pragma unroll 1
    for (u32 d = threadIdx.x; d < width; d += blockDim.x) x[d] = fmaf(first[d], gate[d], x[d]);
}

// Dense features, then the product of two matrices per sample: left is [lefts, dim], right is
// [dim, rights]. One block per sample.
extern "C" __global__ void __launch_bounds__(256)
interact_products(const float *__restrict__ dense, const float *__restrict__ left, const float *__restrict__ right,
                  float *__restrict__ out, u32 dim, u32 lefts, u32 rights, u32 dense_stride, u32 left_stride,
                  u32 right_stride, u32 out_stride) {
    dense += (u64)blockIdx.x * dense_stride;
    left += (u64)blockIdx.x * left_stride;
    right += (u64)blockIdx.x * right_stride;
    out += (u64)blockIdx.x * out_stride;
#pragma unroll 1
    for (u32 d = threadIdx.x; d < dim; d += blockDim.x) out[d] = dense[d];
    for (u32 at = threadIdx.x; at < lefts * rights; at += blockDim.x) {
        u32 i = 0, j = at;
        while (j >= rights) j -= rights, ++i;
        const float *a = left + (u64)i * dim;
        const float *b = right + j;
        float sum = 0.0f;
#pragma unroll 1
        for (u32 d = 0; d < dim; ++d) sum = fmaf(a[d], b[(u64)d * rights], sum);
        out[dim + at] = sum;
    }
}
