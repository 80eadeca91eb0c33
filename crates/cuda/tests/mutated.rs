//! Machine code with a fault in it is caught: the tests of these kernels can fail.

use hither_cuda::bags::{Build, Mode};
use hither_dlrm::plan::gpu::Variant;
use hither_kernels::bag::Dtype;
use hither_sass::Fault;
use hither_sass::launch::Arch;
use hither_sass::parse::{Instruction, Operand, Program, instruction};

use super::setup::{Kernels, Problem};

/// Whether the changed code still computes the right sums.
fn passes(variant: &str, change: impl Fn(&mut Program) -> usize) -> Vec<Result<bool, Fault>> {
    let variant: Variant = variant.parse().expect("a variant");
    let build = Build { distance: 3, ..Build::new(variant) };
    let problem = Problem::draw(Dtype::F32, 5);
    [Arch::Sm80, Arch::Sm90]
        .map(|arch| {
            let kernels = Kernels::new(&build, arch);
            let (program, shared) = kernels.get(Dtype::F32, Mode::Sum);
            let mut program = program.clone();
            assert!(change(&mut program) > 0, "nothing to change in {variant} for {}", arch.name());
            let mut uploaded = problem.upload(&build);
            // Runs of bags end exactly where the bags end: bounds are decided by equality.
            uploaded.batch.bags_per_group = 4;
            let found = uploaded.run(&program, &build, shared, arch, &mut ())?;
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            Ok(found.iter().zip(&problem.reference(Mode::Sum)).all(same))
        })
        .into()
}

fn nop() -> Instruction {
    instruction("NOP").expect("readable")
}

/// Replaces the first instruction for which `find` holds.
fn replace_first(program: &mut Program, find: impl Fn(&Instruction) -> bool) -> usize {
    let found = program.code.iter_mut().find(|code| find(code));
    found.map(|code| *code = nop()).map_or(0, |()| 1)
}

#[test]
fn unchanged_code_passes() {
    for variant in ["vec4", "register"] {
        assert_eq!(passes(variant, |_| 1), [Ok(true), Ok(true)]);
    }
}

#[test]
fn a_dropped_addition_is_caught() {
    let results = passes("vec4", |program| replace_first(program, |code| code.name == "FADD"));
    assert_eq!(results, [Ok(false), Ok(false)]);
}

#[test]
fn a_misaligned_load_is_caught() {
    let shift = |program: &mut Program| {
        let loads = program.code.iter_mut().filter(|code| code.name == "LDG" && code.has("128"));
        let addresses = loads.filter_map(|code| match &mut code.operands[1] {
            Operand::Address(address) => Some(address),
            _ => None,
        });
        addresses.map(|address| address.offset += 4).count()
    };
    for result in passes("register", shift) {
        let fault = result.expect_err("a fault");
        assert!(fault.to_string().contains("misaligned"), "{fault}");
    }
}

#[test]
fn a_bound_off_by_one_is_caught() {
    // Each comparison of the kernel in turn takes one more or one less: "<" becomes "<=", and so on.
    let mut caught = 0;
    let mut tried = 0;
    for at in 0..12 {
        let loosen = |program: &mut Program| {
            let mut bounds = (program.code.iter_mut())
                .filter(|code| code.name == "ISETP" && code.has("U32") && !code.has("EX"));
            let Some(code) = bounds.nth(at) else { return 1 };
            let swapped = match code.suffixes[0].as_str() {
                "GE" => "GT",
                "GT" => "GE",
                "LT" => "LE",
                _ => "LT",
            };
            code.suffixes[0] = swapped.into();
            1
        };
        for result in passes("vec4", loosen) {
            tried += 1;
            caught += usize::from(result != Ok(true));
        }
    }
    // Some comparisons are never decided by equality, and some only choose how to store.
    assert!(caught * 3 >= tried, "{caught} of {tried} were caught");
}
