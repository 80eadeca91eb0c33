//! Our occupancy against NVIDIA's own header, over a grid.

use std::process::Command;

use hither_cuda::occupancy::{Arch, Resources, occupancy};
use hither_sass::toolchain::{Toolchain, run};

const REGISTERS: [u32; 12] = [16, 24, 32, 33, 40, 42, 48, 64, 72, 88, 128, 255];
const SHARED: [u32; 8] = [0, 1, 1024, 8192, 16_384, 49_152, 65_536, 100_000];
const THREADS: [u32; 7] = [32, 64, 96, 128, 256, 512, 1024];

/// Prints the blocks for every combination, in the order of this test's loops.
fn program(arch: &Arch) -> String {
    let list = |values: &[u32]| values.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    format!(
        r#"#include <cstdio>
#include <climits>
#include <cuda_occupancy.h>
int main() {{
    cudaOccDeviceProp p;
    p.computeMajor = {}; p.computeMinor = {};
    p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = {};
    p.regsPerBlock = 65536; p.regsPerMultiprocessor = 65536; p.warpSize = 32;
    p.sharedMemPerBlock = 49152; p.sharedMemPerMultiprocessor = {};
    p.sharedMemPerBlockOptin = {}; p.reservedSharedMemPerBlock = 1024; p.numSms = 100;
    cudaOccDeviceState state;
    const int registers[] = {{{}}}, shared[] = {{{}}}, threads[] = {{{}}};
    for (int r : registers) for (int s : shared) for (int t : threads) {{
        cudaOccFuncAttributes a;
        a.maxThreadsPerBlock = INT_MAX; a.numRegs = r; a.sharedSizeBytes = 0;
        a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; a.maxDynamicSharedSizeBytes = s;
        cudaOccResult result;
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &p, &a, &state, t, s);
        printf("%d\n", status == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
    }}
}}"#,
        arch.major,
        arch.minor,
        arch.warps * 32,
        arch.shared_bytes,
        arch.shared_bytes_per_block,
        list(&REGISTERS),
        list(&SHARED),
        list(&THREADS),
    )
}

#[test]
fn occupancy_is_nvidias() {
    let toolchain = Toolchain::get();
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    for arch in Arch::ALL {
        let source = directory.join(format!("occupancy-{}.cpp", arch.name));
        let binary = source.with_extension("bin");
        std::fs::write(&source, program(&arch)).expect("write the program");
        run(Command::new("g++")
            .arg("-I")
            .arg(toolchain.include())
            .arg("-o")
            .args([&binary, &source]));
        let said = run(&mut Command::new(&binary)).stdout;
        let mut theirs = std::str::from_utf8(&said).expect("text").lines();
        for registers in REGISTERS {
            for shared_bytes in SHARED {
                for threads in THREADS {
                    let kernel = Resources { registers, shared_bytes, ..Resources::default() };
                    let ours = occupancy(&arch, &kernel, threads).blocks.to_string();
                    let about = format!(
                        "{} {registers} registers, {shared_bytes} bytes, {threads} threads",
                        arch.name
                    );
                    assert_eq!(Some(ours.as_str()), theirs.next(), "{about}");
                }
            }
        }
        assert_eq!(theirs.next(), None);
    }
}
