//! Every variant of a layer against exact sums, over awkward shapes.

use half::bf16;
use hither_kernels::detect::{Bf16, Cpu, Isa, cpu};
use hither_kernels::gemm::{
    Activation, LayerScratch, Linear, Precision, Rows, RowsMut, stride_for,
};
use proptest::prelude::*;

/// All that this processor can run.
fn variants() -> Vec<Cpu> {
    let mut all: Vec<Cpu> = Isa::available().map(|isa| Cpu { isa, bf16: Bf16::Emulated }).collect();
    for bf16 in [Bf16::Avx512, Bf16::Amx] {
        if cpu().isa >= Isa::Avx512 && bf16 <= cpu().bf16 {
            all.push(Cpu { isa: Isa::Avx512, bf16 });
        }
    }
    all
}

/// A layer and rows for it, as PyTorch would hold them.
#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    inputs: usize,
    outputs: usize,
    activation: Activation,
    precision: Precision,
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

const INPUTS: [usize; 14] = [0, 1, 2, 3, 13, 17, 31, 32, 33, 63, 64, 127, 200, 479];
const OUTPUTS: [usize; 15] = [1, 3, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 100, 129, 200];

fn cases() -> impl Strategy<Value = Case> {
    let activation =
        prop::sample::select(vec![Activation::None, Activation::Relu, Activation::Sigmoid]);
    let precision = prop::sample::select(vec![Precision::F32, Precision::Bf16]);
    let (inputs, outputs) = (prop::sample::select(&INPUTS[..]), prop::sample::select(&OUTPUTS[..]));
    let rows = prop_oneof![4 => 1..70usize, 1 => 90..220usize];
    (rows, inputs, outputs, activation, precision, any::<u64>()).prop_map(
        |(rows, inputs, outputs, activation, precision, seed)| {
            let mut values = Values(seed | 1);
            Case {
                rows,
                inputs,
                outputs,
                activation,
                precision,
                x: values.take(rows * inputs),
                weight: values.take(inputs * outputs),
                bias: values.take(outputs),
            }
        },
    )
}

/// Numbers between -1 and 1 from a xorshift; proptest need not shrink each of them.
struct Values(u64);

impl Values {
    fn take(&mut self, count: usize) -> Vec<f32> {
        let next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }
}

impl Case {
    fn pack(&self, cpu: Cpu) -> Linear {
        let Self { activation, precision, .. } = *self;
        Linear::pack(&self.weight, &self.bias, self.inputs, activation, precision, cpu)
    }

    fn forward(&self, cpu: Cpu) -> Vec<f32> {
        let mut y = vec![f32::NAN; self.rows * self.outputs];
        self.pack(cpu).forward(
            Rows::new(&self.x, self.rows, self.inputs),
            RowsMut::new(&mut y, self.rows, self.outputs),
            &mut LayerScratch::default(),
        );
        y
    }

    /// For each output its exact value and how far off rounding may have carried a result.
    ///
    /// A sum of n products, rounded at each of at most n + 1 additions (and the products, where
    /// they are not fused), is off by at most (n + 2)·u·(|bias| + Σ|x·w|), u = 2⁻²⁴, to first
    /// order; a tenth more covers the rest. ReLU does not enlarge that, a sigmoid quarters it and
    /// rounds a few times itself.
    fn exact(&self, precision: Precision) -> Vec<(f64, f64)> {
        let unit = 2f64.powi(-24);
        let round = |v: f32| match precision {
            Precision::F32 => f64::from(v),
            Precision::Bf16 => f64::from(bf16::from_f32(v)),
        };
        let mut all = Vec::new();
        for x in (0..self.rows).map(|row| &self.x[row * self.inputs..][..self.inputs]) {
            for (output, bias) in self.bias.iter().enumerate() {
                let (mut sum, mut size) = (f64::from(*bias), f64::from(bias.abs()));
                for (x, w) in x.iter().zip(&self.weight[output * self.inputs..]) {
                    sum += round(*x) * round(*w);
                    size += (round(*x) * round(*w)).abs();
                }
                let bound = 1.1 * (self.inputs + 2) as f64 * unit * size;
                all.push(match self.activation {
                    Activation::None => (sum, bound),
                    Activation::Relu => (sum.max(0.0), bound),
                    Activation::Sigmoid => (1.0 / (1.0 + (-sum).exp()), bound / 4.0 + 8.0 * unit),
                });
            }
        }
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_variant_stays_within_what_rounding_allows(case in cases()) {
        for cpu in variants() {
            let exact = case.exact(case.pack(cpu).precision());
            for (at, (y, (value, bound))) in case.forward(cpu).iter().zip(exact).enumerate() {
                let off = (f64::from(*y) - value).abs();
                prop_assert!(off <= bound, "{cpu:?} [{at}]: {y}, not {value} ± {bound:e}");
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_the_rows_beside_it(
        case in cases(),
        cuts in prop::collection::vec(0..220usize, 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(case.rows)).collect();
        cuts.extend([0, case.rows]);
        cuts.sort_unstable();
        for cpu in variants() {
            let layer = case.pack(cpu);
            let mut scratch = LayerScratch::default();
            let mut y = vec![f32::NAN; case.rows * case.outputs];
            for cut in cuts.windows(2) {
                let rows = cut[1] - cut[0];
                let x = Rows::new(&case.x[cut[0] * case.inputs..], rows, case.inputs);
                let part = &mut y[cut[0] * case.outputs..cut[1] * case.outputs];
                layer.forward(x, RowsMut::new(part, rows, case.outputs), &mut scratch);
            }
            prop_assert!(bits(&y) == bits(&case.forward(cpu)), "{cpu:?}");
        }
    }

    /// Types and strides of x and y change nothing but y's own rounding, and gaps are left alone.
    #[test]
    fn types_and_strides_do_not_matter(case in cases()) {
        let narrow = |v: &[f32]| v.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>();
        let case = Case { x: narrow(&case.x).iter().map(|v| v.to_f32()).collect(), ..case };
        let (x_stride, y_stride) = (stride_for::<bf16>(case.inputs), case.outputs + 3);
        let mut x = vec![bf16::NAN; case.rows * x_stride];
        for (x, row) in x.chunks_mut(x_stride).zip(case.x.chunks(case.inputs.max(1))) {
            x[..case.inputs].copy_from_slice(&narrow(row));
        }
        for cpu in variants() {
            let mut y = vec![bf16::ONE; case.rows * y_stride];
            case.pack(cpu).forward(
                Rows::new(&x, case.rows, x_stride),
                RowsMut::new(&mut y, case.rows, y_stride),
                &mut LayerScratch::default(),
            );
            let plain = case.forward(cpu);
            for (row, plain) in y.chunks(y_stride).zip(plain.chunks(case.outputs)) {
                prop_assert!(row[..case.outputs] == narrow(plain), "{cpu:?}");
                prop_assert_eq!(&row[case.outputs..], &[bf16::ONE; 3]);
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// All numbers of rows that tiles treat differently; the properties above cover the rest.
#[test]
fn tiles_compute_every_number_of_rows() {
    if cpu().bf16 != Bf16::Amx {
        eprintln!("skipped: this processor has no {}, so nothing was checked", Bf16::Amx);
        return;
    }
    for rows in 1..=100 {
        let mut values = Values(rows as u64);
        let case = Case {
            rows,
            inputs: 70,
            outputs: 75,
            activation: Activation::Relu,
            precision: Precision::Bf16,
            x: values.take(rows * 70),
            weight: values.take(70 * 75),
            bias: values.take(75),
        };
        for (y, (value, bound)) in case.forward(cpu()).iter().zip(case.exact(Precision::Bf16)) {
            assert!((f64::from(*y) - value).abs() <= bound, "{rows} rows: {y}, not {value}");
        }
    }
}

/// All sum with fused multiply-adds in the same order. bf16 that is widened gives what fp32 gives for rounded
/// values.
#[test]
fn vector_variants_agree_to_the_bit() {
    let mut values = Values(7);
    let case = Case {
        rows: 29,
        inputs: 301,
        outputs: 77,
        activation: Activation::Relu,
        precision: Precision::F32,
        x: values.take(29 * 301),
        weight: values.take(301 * 77),
        bias: values.take(77),
    };
    let round = |values: &[f32]| values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
    let rounded = Case { x: round(&case.x), weight: round(&case.weight), ..case.clone() };
    let widened = Case { precision: Precision::Bf16, ..case.clone() };
    let vectors = || variants().into_iter().filter(|cpu| cpu.isa > Isa::Reference);
    let is_same = |all: Vec<Vec<f32>>| all.windows(2).all(|pair| bits(&pair[0]) == bits(&pair[1]));
    assert!(is_same(vectors().map(|cpu| case.forward(cpu)).collect()));
    let emulated = vectors().filter(|cpu| cpu.bf16 == Bf16::Emulated);
    assert!(is_same(
        emulated.flat_map(|cpu| [rounded.forward(cpu), widened.forward(cpu)]).collect()
    ));
}

/// One weight of 1 to each of 40 outputs: what goes in comes out.
fn through(x: &[f32], activation: Activation, cpu: Cpu) -> (Vec<f32>, Vec<bf16>) {
    let outputs = 40;
    let layer = Linear::pack(&[1.0; 40], &[0.0; 40], 1, activation, Precision::F32, cpu);
    let (mut y, mut narrow) = (vec![0.0; x.len() * outputs], vec![bf16::ZERO; x.len() * outputs]);
    let (rows, scratch) = (x.len(), &mut LayerScratch::default());
    layer.forward(Rows::new(x, rows, 1), RowsMut::new(&mut y, rows, outputs), scratch);
    layer.forward(Rows::new(x, rows, 1), RowsMut::new(&mut narrow, rows, outputs), scratch);
    (y, narrow)
}

#[test]
fn odd_values_pass_through_and_are_rounded_to_even() {
    let mut x = vec![0.0, 1e-40, -1e-40, f32::MIN_POSITIVE, f32::MAX, f32::MIN, 3.4e38];
    x.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::from_bits(0x7f80_0001)]);
    // Around every kind of tie: below, on and above half of the last place, even and odd.
    for high in [0x3f80u32, 0x3f81, 0x0001, 0x0000, 0x7f7f, 0xc2ff] {
        x.extend(
            [0x7fff, 0x8000, 0x8001, 0, 1, 0xffff].map(|low| f32::from_bits(high << 16 | low)),
        );
    }
    for cpu in variants() {
        let (y, narrow) = through(&x, Activation::None, cpu);
        for (x, (y, narrow)) in x.iter().zip(y.chunks(40).zip(narrow.chunks(40))) {
            for (y, narrow) in y.iter().zip(narrow) {
                assert!(y == x || y.is_nan() && x.is_nan(), "{cpu:?}: {x:e} became {y:e}");
                let expected = bf16::from_f32(*x);
                let same = narrow.to_bits() == expected.to_bits() || *x == 0.0;
                assert!(same || narrow.is_nan() && expected.is_nan(), "{cpu:?}: {x:e}: {narrow:e}");
            }
        }
    }
}

#[test]
fn activations_keep_nan_and_reach_their_limits() {
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 100.0];
    for cpu in variants() {
        let (relu, _) = through(&x, Activation::Relu, cpu);
        let (sigmoid, _) = through(&x, Activation::Sigmoid, cpu);
        assert!(relu[..40].iter().chain(&sigmoid[..40]).all(|y| y.is_nan()), "{cpu:?}");
        let column = |y: &[f32]| y.iter().skip(40).step_by(40).copied().collect::<Vec<_>>();
        assert_eq!(column(&relu), [f32::INFINITY, 0.0, 0.0, 100.0], "{cpu:?}");
        let expected = [1.0, 0.0, 1.0 / (1.0 + 1f32.exp()), 1.0];
        assert_eq!(column(&sigmoid), expected, "{cpu:?}");
    }
}

/// What lies behind a row, or in a row beside it, must not leak into its sums.
#[test]
fn nan_stays_in_its_row() {
    for precision in [Precision::F32, Precision::Bf16] {
        for (cpu, outputs) in variants().into_iter().flat_map(|cpu| [(cpu, 1), (cpu, 50)]) {
            let (inputs, rows) = (45, 20);
            let weight = vec![1.0; inputs * outputs];
            let bias = vec![0.0; outputs];
            let layer = Linear::pack(&weight, &bias, inputs, Activation::None, precision, cpu);
            let mut x = vec![1.0; rows * inputs];
            x[7 * inputs..8 * inputs].fill(f32::NAN);
            let mut y = vec![0.0; rows * outputs];
            layer.forward(
                Rows::new(&x, rows, inputs),
                RowsMut::new(&mut y, rows, outputs),
                &mut LayerScratch::default(),
            );
            for (row, y) in y.chunks(outputs).enumerate() {
                assert!(
                    y.iter().all(|y| if row == 7 { y.is_nan() } else { *y == 45.0 }),
                    "{cpu:?}"
                );
            }
        }
    }
}

#[test]
#[should_panic(expected = "rows beyond their slice")]
fn rows_that_do_not_fit_are_refused() {
    let layer = Linear::pack(&[1.0; 32], &[0.0; 16], 2, Activation::None, Precision::F32, cpu());
    let mut y = vec![0.0; 3 * 16];
    let x = [0.0; 5];
    layer.forward(Rows::new(&x, 3, 2), RowsMut::new(&mut y, 3, 16), &mut LayerScratch::default());
}
