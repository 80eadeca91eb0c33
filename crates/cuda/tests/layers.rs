//! Fully connected layers and interactions in the emulator against plain arithmetic.

use hither_cuda::bags::{LAYERS_SOURCE, TILE};
use hither_sass::launch::{Arch, Launch, launch};
use hither_sass::memory::Memory;
use hither_sass::parse::{Program, parse};
use hither_sass::toolchain::{Report, Toolchain};

use super::setup::Draw;

fn kernels(arch: Arch) -> (Vec<Program>, Vec<Report>) {
    let toolchain = Toolchain::get();
    let compiled = toolchain.compile(LAYERS_SOURCE, arch.name(), &[]);
    (parse(&toolchain.disassemble(&compiled)).expect("readable machine code"), compiled.reports())
}

fn floats(memory: &mut Memory, name: &str, values: &[f32]) -> u64 {
    memory.add(name, bytemuck::cast_slice(values).to_vec(), false)
}

fn run(
    arch: Arch,
    kernel: &str,
    sizes: ([u32; 3], [u32; 3]),
    pointers: &[u64],
    numbers: &[u32],
    memory: &mut Memory,
) {
    let (programs, reports) = kernels(arch);
    let program = programs.iter().find(|program| program.name == kernel).expect("a kernel");
    let report = reports.iter().find(|report| report.kernel == kernel).expect("a report");
    let mut parameters: Vec<u8> =
        pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    parameters.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let how = Launch {
        grid: sizes.0,
        block: sizes.1,
        shared_bytes: report.shared_bytes as usize,
        parameters: &parameters,
        arch,
    };
    launch(program, &how, memory, &mut ())
        .unwrap_or_else(|fault| panic!("{}: {fault}", arch.name()));
}

fn draw(len: usize, draw: &mut Draw) -> Vec<f32> {
    (0..len).map(|_| draw.float()).collect()
}

#[test]
fn linear_layers_are_plain_products() {
    for arch in [Arch::Sm80, Arch::Sm90] {
        for (rows, inputs, outputs) in [(1, 1, 1), (5, 13, 17), (19, 33, 16), (3, 16, 40)] {
            for activation in 0..3 {
                let mut random = Draw::new(rows as u64);
                let (x, w) =
                    (draw(rows * inputs, &mut random), draw(outputs * inputs, &mut random));
                let bias = draw(outputs, &mut random);
                let mut memory = Memory::default();
                let pointers = [
                    floats(&mut memory, "x", &x),
                    floats(&mut memory, "w", &w),
                    floats(&mut memory, "bias", &bias),
                    memory.add("y", vec![0xff; rows * outputs * 4], true),
                ];
                let [n, k, m] = [rows, inputs, outputs].map(|size| size as u32);
                let grid = [m.div_ceil(TILE), n.div_ceil(TILE), 1];
                let numbers = [n, k, m, k, m, activation];
                run(arch, "linear", (grid, [TILE, TILE, 1]), &pointers, &numbers, &mut memory);
                let y: Vec<f32> = bytemuck::pod_collect_to_vec(
                    memory.read(pointers[3], rows * outputs * 4).expect("the output"),
                );
                for (at, y) in y.iter().enumerate() {
                    let (row, output) = (at / outputs, at % outputs);
                    let sum = (0..inputs).fold(0.0f32, |sum, i| {
                        x[row * inputs + i].mul_add(w[output * inputs + i], sum)
                    }) + bias[output];
                    match activation {
                        0 => assert_eq!(y.to_bits(), sum.to_bits()),
                        1 => assert_eq!(*y, sum.max(0.0)),
                        // The machine's exponential is an approximation.
                        _ => assert!((y - 1.0 / (1.0 + (-sum).exp())).abs() < 1e-6),
                    }
                }
            }
        }
    }
}

#[test]
fn interactions_are_plain_dot_products() {
    let (samples, dim, tables) = (3, 5, 4);
    for arch in [Arch::Sm80, Arch::Sm90] {
        for itself in [0, 1] {
            let mut random = Draw::new(9);
            let dense = draw(samples * dim, &mut random);
            let pooled = draw(samples * dim * tables, &mut random);
            let vectors = tables + 1;
            let pairs = vectors * (vectors - 1) / 2 + if itself == 1 { vectors } else { 0 };
            let width = dim + pairs;
            let mut memory = Memory::default();
            let pointers = [
                floats(&mut memory, "dense", &dense),
                floats(&mut memory, "pooled", &pooled),
                memory.add("out", vec![0xff; samples * width * 4], true),
            ];
            let numbers =
                [dim, vectors, dim, dim * tables, width, itself].map(|number| number as u32);
            let sizes = ([samples as u32, 1, 1], [256, 1, 1]);
            run(arch, "interact_dot", sizes, &pointers, &numbers, &mut memory);
            let out: Vec<f32> = bytemuck::pod_collect_to_vec(
                memory.read(pointers[2], samples * width * 4).expect("the output"),
            );
            for sample in 0..samples {
                let vector = |i: usize| match i {
                    0 => &dense[sample * dim..][..dim],
                    _ => &pooled[(sample * tables + i - 1) * dim..][..dim],
                };
                let mut expected = vector(0).to_vec();
                for i in 0..vectors {
                    for j in 0..i + itself {
                        let products = vector(i).iter().zip(vector(j));
                        expected.push(products.fold(0.0f32, |sum, (a, b)| a.mul_add(*b, sum)));
                    }
                }
                assert_eq!(out[sample * width..][..width], expected, "{} {itself}", arch.name());
            }
        }
    }
}

#[test]
fn features_side_by_side_are_copied() {
    for arch in [Arch::Sm80, Arch::Sm90] {
        let mut memory = Memory::default();
        let (dense, pooled) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
        let pointers = [
            floats(&mut memory, "dense", &dense),
            floats(&mut memory, "pooled", &pooled),
            memory.add("out", vec![0xff; 40], true),
        ];
        let sizes = ([2, 1, 1], [256, 1, 1]);
        run(arch, "interact_cat", sizes, &pointers, &[2, 3, 2, 3, 5], &mut memory);
        let out: Vec<f32> =
            bytemuck::pod_collect_to_vec(memory.read(pointers[2], 40).expect("the output"));
        assert_eq!(out, [1.0, 2.0, 5.0, 6.0, 7.0, 3.0, 4.0, 8.0, 9.0, 10.0]);
    }
}

#[test]
fn cross_layers_multiply_and_add() {
    let (samples, width) = (3, 300);
    for arch in [Arch::Sm80, Arch::Sm90] {
        let mut random = Draw::new(4);
        let [first, gate, x] = [(); 3].map(|()| draw(samples * width, &mut random));
        let mut memory = Memory::default();
        let pointers = [
            floats(&mut memory, "first", &first),
            floats(&mut memory, "gate", &gate),
            memory.add("x", bytemuck::cast_slice(&x).to_vec(), true),
        ];
        let sizes = ([samples as u32, 1, 1], [256, 1, 1]);
        run(arch, "interact_cross", sizes, &pointers, &[width as u32; 4], &mut memory);
        let found: Vec<f32> = bytemuck::pod_collect_to_vec(
            memory.read(pointers[2], samples * width * 4).expect("the output"),
        );
        let expected: Vec<f32> =
            (0..samples * width).map(|at| first[at].mul_add(gate[at], x[at])).collect();
        assert_eq!(found, expected, "{}", arch.name());
    }
}

#[test]
fn projected_vectors_are_multiplied() {
    let (samples, dim, lefts, rights) = (3, 5, 4, 3);
    let width = dim + lefts * rights;
    for arch in [Arch::Sm80, Arch::Sm90] {
        let mut random = Draw::new(6);
        let dense = draw(samples * dim, &mut random);
        let (left, right) =
            (draw(samples * lefts * dim, &mut random), draw(samples * dim * rights, &mut random));
        let mut memory = Memory::default();
        let pointers = [
            floats(&mut memory, "dense", &dense),
            floats(&mut memory, "left", &left),
            floats(&mut memory, "right", &right),
            memory.add("out", vec![0xff; samples * width * 4], true),
        ];
        let strides = [dim, lefts * dim, dim * rights, width];
        let numbers = [&[dim, lefts, rights], &strides[..]].concat();
        let numbers: Vec<u32> = numbers.into_iter().map(|number| number as u32).collect();
        let sizes = ([samples as u32, 1, 1], [256, 1, 1]);
        run(arch, "interact_products", sizes, &pointers, &numbers, &mut memory);
        let out: Vec<f32> = bytemuck::pod_collect_to_vec(
            memory.read(pointers[3], samples * width * 4).expect("the output"),
        );
        for sample in 0..samples {
            let mut expected = dense[sample * dim..][..dim].to_vec();
            for at in 0..lefts * rights {
                expected.push((0..dim).fold(0.0f32, |sum, d| {
                    let a = left[sample * lefts * dim + at / rights * dim + d];
                    a.mul_add(right[sample * dim * rights + d * rights + at % rights], sum)
                }));
            }
            assert_eq!(out[sample * width..][..width], expected, "{}", arch.name());
        }
    }
}
