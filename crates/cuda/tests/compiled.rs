//! What the compiler makes of every variant on four architectures: resources, and the instructions
//! that each technique stands on.

use std::collections::BTreeSet;

use hither_cuda::bags::{Build, SOURCE, THREADS};
use hither_cuda::gpu::{RESOURCES, planned_builds};
use hither_cuda::occupancy::{Arch, Resources, occupancy};
use hither_dlrm::plan::gpu::{Ahead, Pinning, Variant};
use hither_sass::parse::{Operand, parse};
use hither_sass::toolchain::{Compiled, Report, Toolchain};

fn compile(build: &Build, arch: &Arch) -> (Toolchain, Compiled) {
    let toolchain = Toolchain::get();
    let compiled = toolchain.compile(SOURCE, arch.name, &build.defines());
    (toolchain, compiled)
}

/// Instructions of the bag kernels that mark a technique.
fn marks(toolchain: &Toolchain, compiled: &Compiled) -> BTreeSet<&'static str> {
    let programs = parse(&toolchain.disassemble(compiled)).expect("readable machine code");
    let mut marks = BTreeSet::new();
    for code in programs.iter().filter(|p| p.name.starts_with("bags_")).flat_map(|p| &p.code) {
        // The upper word of the descriptor that createpolicy makes for evict_last is 0x14f00000: a
        // constant on sm_8x, put together from 0x140 and 0xf on later architectures.
        let has = |number| code.operands.contains(&Operand::Integer(number));
        let is_evict_last = has(0x14f0_0000) || code.name == "UMOV" && has(0x140);
        let known = [
            ("STS", code.name == "STS"),
            ("STL", code.name == "STL"),
            ("PF1", code.name == "CCTL" && code.has("PF1")),
            ("PF2", code.name == "CCTL" && code.has("PF2")),
            ("PML2", code.name == "CCTL" && code.has("PML2")),
            ("evict_last", is_evict_last),
            ("LDG.128", code.name == "LDG" && code.has("128")),
            ("STG.128", code.name == "STG" && code.has("128")),
        ];
        marks.extend(known.into_iter().filter(|(_, found)| *found).map(|(mark, _)| mark));
    }
    marks
}

fn promised(variant: Variant) -> BTreeSet<&'static str> {
    let mut marks = BTreeSet::new();
    marks.extend(match variant.ahead {
        Ahead::Shared => Some("STS"),
        Ahead::Local => Some("STL"),
        Ahead::L1 => Some("PF1"),
        Ahead::L2 => Some("PF2"),
        Ahead::None | Ahead::Register => None,
    });
    marks.extend((variant.pinning == Pinning::Policy).then_some("evict_last"));
    if variant.vec == 4 {
        marks.extend(["LDG.128", "STG.128"]);
    }
    marks
}

#[test]
fn every_technique_has_its_instructions_and_no_others() {
    for variant in Variant::ALL.into_iter().filter(|variant| variant.has_own_code()) {
        for arch in Arch::ALL {
            // Without a register cap hardly anything is spilled, so local memory means the technique.
            let (toolchain, compiled) = compile(&Build::new(variant), &arch);
            let mut found = marks(&toolchain, &compiled);
            if variant.ahead != Ahead::Local && compiled.reports().iter().any(|r| r.spill_bytes > 0)
            {
                assert!(may_spill(&arch), "{variant} on {}", arch.name);
                found.remove("STL");
            }
            assert_eq!(found, promised(variant), "{variant} on {}", arch.name);
        }
    }
}

#[test]
fn the_pin_kernel_asks_l2_to_keep() {
    for arch in Arch::ALL {
        let (toolchain, compiled) = compile(&Build::new(Variant::VEC4), &arch);
        let programs = parse(&toolchain.disassemble(&compiled)).expect("readable machine code");
        let pin = programs.iter().find(|program| program.name == "pin").expect("the pin kernel");
        assert!(
            pin.code.iter().any(|code| code.name == "CCTL" && code.has("PML2")),
            "{}",
            arch.name
        );
    }
}

/// For sm_100 this compiler spills a few words on its own account, to stay at 32 registers.
fn may_spill(arch: &Arch) -> bool {
    *arch == Arch::SM_100
}

#[test]
fn uncapped_builds_spill_nothing() {
    for variant in Variant::ALL.into_iter().filter(|variant| variant.has_own_code()) {
        for arch in Arch::ALL {
            let (_, compiled) = compile(&Build::new(variant), &arch);
            for report in compiled.reports() {
                let about = format!("{variant} on {}: {report:?}", arch.name);
                assert!(report.spill_bytes <= if may_spill(&arch) { 32 } else { 0 }, "{about}");
                let is_local = variant.ahead == Ahead::Local && report.kernel.starts_with("bags_");
                let has_stack = report.stack_bytes > 0 && report.spill_bytes == 0;
                assert!(has_stack == is_local || may_spill(&arch), "{about}");
            }
        }
    }
}

/// A cap is kept whatever it costs, and fits as many blocks as were asked for.
#[test]
fn register_caps_hold() {
    for variant in ["register", "combined", "vec4"] {
        let variant: Variant = variant.parse().expect("a variant");
        for arch in [Arch::SM_80, Arch::SM_90] {
            for (min_blocks, registers_max) in [(5, 48), (6, 40), (8, 32)] {
                let build = Build { min_blocks, ..Build::new(variant) };
                for report in compile(&build, &arch).1.reports() {
                    let about =
                        format!("{variant} on {}, {min_blocks} blocks: {report:?}", arch.name);
                    assert!(report.registers <= registers_max, "{about}");
                    let kernel = Resources {
                        registers: report.registers,
                        shared_bytes: report.shared_bytes,
                        ..Resources::default()
                    };
                    assert!(occupancy(&arch, &kernel, THREADS).blocks >= min_blocks, "{about}");
                }
            }
        }
    }
}

/// The table that plans are made from is what the compiler says. `HITHER_WRITE_RESOURCES=1` writes it
/// anew after a change of the kernels or of the compiler.
#[test]
fn the_resource_table_is_what_the_compiler_says() {
    let mut table =
        "arch,variant,distance,min_blocks,kernel,registers,spill_bytes,stack_bytes,shared_bytes\n"
            .to_string();
    for arch in Arch::ALL {
        for build in planned_builds(&arch) {
            for report in compile(&build, &arch).1.reports() {
                let Build { variant, distance, min_blocks, .. } = build;
                let Report { kernel, registers, spill_bytes, stack_bytes, shared_bytes } = report;
                table += &format!(
                    "{},{variant},{distance},{min_blocks},{kernel},{registers},{spill_bytes},{stack_bytes},{shared_bytes}\n",
                    arch.name
                );
            }
        }
    }
    if std::env::var_os("HITHER_WRITE_RESOURCES").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/resources.csv");
        std::fs::write(path, &table).expect("write the table");
        return;
    }
    assert!(
        table == RESOURCES,
        "set HITHER_WRITE_RESOURCES=1 and run this test to write the table anew"
    );
}
