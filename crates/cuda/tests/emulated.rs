//! Every variant's machine code against plain arithmetic, bit by bit.

use std::collections::BTreeMap;

use hither_cuda::bags::{Build, DTYPES, Mode, THREADS};
use hither_dlrm::plan::gpu::Variant;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::{self, Bags, Dtype, Ids, OutOfRange, Pooling, Settings};
use hither_kernels::detect::Isa;
use hither_sass::launch::{Access, Arch, Kind};

use super::setup::{Kernels, Problem, row_at};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Two register caps, two distances, and two widths of groups.
fn builds(variant: Variant) -> [Build; 4] {
    [(0, 2, 32), (8, 2, 8), (0, 5, 8), (8, 5, 32)].map(|(min_blocks, distance, lanes)| Build {
        variant,
        distance,
        lanes,
        min_blocks,
    })
}

fn check(name: &str) {
    let variant: Variant = name.parse().expect("a variant");
    for arch in [Arch::Sm80, Arch::Sm90] {
        for build in builds(variant) {
            let kernels = Kernels::new(&build, arch);
            for dtype in DTYPES {
                let problem = Problem::draw(dtype, 7);
                for mode in Mode::ALL {
                    let (program, shared) = kernels.get(dtype, mode);
                    let about = format!("{} {build:?} {}", arch.name(), program.name);
                    let found = problem.upload(&build).run(program, &build, shared, arch, &mut ());
                    let found = found.unwrap_or_else(|fault| panic!("{about}: {fault}"));
                    assert_eq!(bits(&found), bits(&problem.reference(mode)), "{about}");
                }
            }
        }
    }
}

macro_rules! variants {
    ($($test:ident $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            check($name);
        })*

        #[test]
        fn no_variant_is_left_out() {
            let own: Vec<&str> = Variant::ALL.iter().filter(|v| v.has_own_code()).map(|v| v.name).collect();
            assert_eq!(own, [$($name),*]);
        }
    };
}

variants! {
    base "base",
    vec4 "vec4",
    register "register",
    shared "shared",
    local "local",
    l1 "l1",
    l2 "l2",
    combined "combined",
}

/// The plain arithmetic of these tests is that of the CPU's kernels.
#[test]
fn the_reference_is_that_of_the_cpu() {
    for dtype in [Dtype::F32, Dtype::F16] {
        let problem = Problem::draw(dtype, 3);
        for mode in Mode::ALL {
            let rows: Vec<Vec<u8>> = (problem.tables.iter())
                .map(|table| match dtype {
                    Dtype::F32 => bytemuck::cast_slice(&table.values).to_vec(),
                    _ => table
                        .values
                        .iter()
                        .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
                        .collect(),
                })
                .collect();
            let tables: Vec<bag::Table> = (problem.tables.iter().zip(&rows))
                .map(|(table, data)| bag::Table {
                    dtype,
                    rows: table.params.len(),
                    dim: table.dim,
                    stride: dtype.row_bytes(table.dim),
                    data,
                    params: &[],
                    pooling: if mode == Mode::Max { Pooling::Max } else { Pooling::Sum },
                    padding: None,
                    hot: None,
                    prefetch: Prefetch::Off,
                })
                .collect();
            let offsets: Vec<i64> = problem.starts.iter().map(|start| i64::from(*start)).collect();
            let weights = (mode == Mode::Weighted).then_some(&problem.weights[..]);
            let bags = Bags {
                batch: problem.bags,
                ids: Ids::U32(&problem.rows),
                offsets: &offsets,
                weights,
            };
            let mut out = vec![0.0; problem.bags * problem.width()];
            let settings = Settings { isa: Isa::Reference, out_of_range: OutOfRange::Error };
            bag::embed(&tables, &bags, &mut out, &settings).expect("a good batch");
            let plain =
                Problem { scales: vec![1.0; problem.scales.len()], ..problem_like(&problem) };
            assert_eq!(
                bits(&out),
                bits(&plain.reference(mode)),
                "{} {}",
                dtype.name(),
                mode.name()
            );
        }
    }
}

fn problem_like(problem: &Problem) -> Problem {
    Problem::draw(problem.dtype, 3)
}

/// Prefetches ask for rows that are read later, the promised distance ahead, across bags; each line
/// is asked for once.
#[test]
fn prefetches_run_ahead_of_reads() {
    for name in ["l1", "l2"] {
        let build = Build { distance: 3, ..Build::new(name.parse().expect("a variant")) };
        let kernels = Kernels::new(&build, Arch::Sm80);
        let problem = Problem::draw(Dtype::F32, 11);
        let (program, shared) = kernels.get(Dtype::F32, Mode::Sum);
        // Lines of one warp in order: whether asked for ahead, or read by 128-bit loads.
        let mut events: Vec<((u32, u32, usize), Kind, u64)> = Vec::new();
        let mut watch = |access: &Access<'_>| {
            let is_row =
                access.kind == Kind::Prefetch || access.kind == Kind::Load && access.len == 16;
            if is_row {
                let place = (access.block[0], access.block[1], access.warp);
                let lanes = (0..32).filter(|lane| access.mask >> lane & 1 == 1);
                let mut lines: Vec<u64> = lanes.map(|lane| access.addresses[lane] / 128).collect();
                let asked = lines.len();
                lines.dedup();
                assert!(
                    access.kind == Kind::Load || lines.len() == asked,
                    "{name}: a line asked for twice"
                );
                events.extend(lines.into_iter().map(|line| (place, access.kind, line)));
            }
        };
        problem
            .upload(&build)
            .run(program, &build, shared, Arch::Sm80, &mut watch)
            .expect("a good run");
        let prefetches: Vec<usize> =
            (0..events.len()).filter(|at| events[*at].1 == Kind::Prefetch).collect();
        assert!(prefetches.len() > 100, "{name}: {} prefetches", prefetches.len());
        for at in prefetches {
            let (place, _, line) = events[at];
            let reads =
                events[at..].iter().filter(|(p, kind, _)| *p == place && *kind == Kind::Load);
            assert!(
                reads.clone().any(|(_, _, read)| *read == line),
                "{name}: {line:#x} was never read"
            );
        }
    }
}

/// Plans for a GPU walk their cache model over the ids: a warp asks for the rows of its bags in order,
/// and for each byte of a row once. The machine code of every variant does just that.
#[test]
fn rows_are_read_once_and_in_the_order_of_ids() {
    let problem = Problem::draw(Dtype::F32, 5);
    for variant in Variant::ALL.into_iter().filter(|variant| variant.has_own_code()) {
        let build = Build { distance: 3, lanes: 32, ..Build::new(variant) };
        let kernels = Kernels::new(&build, Arch::Sm80);
        let (program, shared) = kernels.get(Dtype::F32, Mode::Sum);
        let mut uploaded = problem.upload(&build);
        let slices = uploaded.slices.clone();
        // Rows by slice, block and warp.
        let mut read: BTreeMap<(u32, u32, usize), Vec<u32>> = BTreeMap::new();
        let mut watch = |access: &Access<'_>| {
            let slice = &slices[access.block[1] as usize];
            let lanes = (0..32).filter(|lane| access.mask >> lane & 1 == 1);
            let rows: Vec<Option<u32>> =
                lanes.map(|lane| row_at(slice, access.addresses[lane])).collect();
            let is_row = access.kind == Kind::Load;
            if let Some(row) = rows[0].filter(|_| is_row) {
                assert!(rows.iter().all(|other| *other == Some(row)), "{variant}: one row");
                let elements = (rows.len() * access.len / 4) as u32;
                let padded = slice.width.next_multiple_of(build.variant.vec);
                assert_eq!(elements, padded, "{variant}: elements of a row");
                let place = (access.block[1], access.block[0], access.warp);
                read.entry(place).or_default().push(row);
            }
        };
        uploaded.run(program, &build, shared, Arch::Sm80, &mut watch).expect("a good run");
        let (bags, run) = (problem.bags, uploaded.batch.bags_per_group as usize);
        let mut rows_expected = 0;
        for ((slice, block, warp), rows) in &read {
            let group = *block as usize * (THREADS / 32) as usize + warp;
            let first = slices[*slice as usize].table as usize * bags;
            let bag = |bag: usize| problem.starts[first + bag.min(bags)] as usize;
            let expected = &problem.rows[bag(group * run)..bag((group + 1) * run)];
            assert_eq!(rows, expected, "{variant}: slice {slice}, block {block}, warp {warp}");
            rows_expected += expected.len();
        }
        let all = slices.iter().map(|slice| {
            let ends = [slice.table as usize * bags, (slice.table as usize + 1) * bags];
            (problem.starts[ends[1]] - problem.starts[ends[0]]) as usize
        });
        assert_eq!(rows_expected, all.sum::<usize>(), "{variant}: every bag of every slice");
    }
}
