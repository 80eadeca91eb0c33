//! What the processor can do, asked once. `HITHER_ISA` lowers the choice, never raises it:
//! `HITHER_ISA=avx2` names the best instruction set to use, `HITHER_ISA=-amx` leaves the matrix tiles
//! out, and `HITHER_ISA=avx512,-amx` does both.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// Which family of kernels runs. Ordered: a later one needs all that an earlier one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, on any processor: the truth that the others are tested against.
    Reference,
    /// AVX2, FMA, F16C, BMI1, BMI2 and POPCNT.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with VNNI: dot products of bytes.
    Avx512Vnni,
}

/// How products of bfloat16 are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bf16 {
    /// Widened to fp32 first: half the bytes, no faster arithmetic.
    Emulated,
    /// `vdpbf16ps`.
    Avx512,
    /// Tiles.
    Amx,
}

/// The instruction sets that the kernels use.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    pub isa: Isa,
    pub bf16: Bf16,
}

/// The best that this processor has, or less where `HITHER_ISA` says so.
pub fn cpu() -> Cpu {
    static CPU: OnceLock<Cpu> = OnceLock::new();
    *CPU.get_or_init(|| {
        let limit = requested().unwrap_or_default();
        let isa = best_isa().min(limit.isa);
        let bf16 = if isa < Isa::Avx512 { Bf16::Emulated } else { best_bf16(limit.amx) };
        Cpu { isa, bf16 }
    })
}

/// The most that kernels may use, as `HITHER_ISA` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub isa: Isa,
    /// Whether AMX may be used.
    pub amx: bool,
}

impl Default for Limit {
    fn default() -> Self {
        Self { isa: Isa::Avx512Vnni, amx: true }
    }
}

/// The limit that `HITHER_ISA` sets; none if it is not set. [`cpu`] ignores a value that cannot be
/// read: a program calls this first to report it.
pub fn requested() -> Result<Limit, UnknownIsa> {
    std::env::var("HITHER_ISA").unwrap_or_default().parse()
}

/// An instruction set, `-amx`, or both with a comma between them.
impl FromStr for Limit {
    type Err = UnknownIsa;

    fn from_str(text: &str) -> Result<Self, UnknownIsa> {
        let mut limit = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part {
                "-amx" => limit.amx = false,
                name => limit.isa = name.parse()?,
            }
        }
        Ok(limit)
    }
}

impl Isa {
    pub const ALL: [Self; 4] = [Self::Reference, Self::Avx2, Self::Avx512, Self::Avx512Vnni];

    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512vnni",
        }
    }

    /// This one, or the best below it that the processor can run: what kernels may be called by.
    pub fn lowered(self) -> Self {
        self.min(best_isa())
    }

    /// Those that this processor can run, plainest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| *isa <= best_isa())
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        Self::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| UnknownIsa(name.into()))
    }
}

/// A word that names no instruction set.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown instruction set `{0}`: expected reference, avx2, avx512 or avx512vnni, and `-amx` behind a comma to leave AMX out"
)]
pub struct UnknownIsa(String);

impl Bf16 {
    pub fn name(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::Avx512 => "avx512-bf16",
            Self::Amx => "amx",
        }
    }
}

impl fmt::Display for Bf16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
fn best_isa() -> Isa {
    use std::is_x86_feature_detected as has;
    let bits = has!("popcnt") && has!("bmi1") && has!("bmi2") && has!("lzcnt");
    let avx2 = has!("avx2") && has!("fma") && has!("f16c") && bits;
    let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
    match (avx2, avx512, has!("avx512vnni")) {
        (true, true, true) => Isa::Avx512Vnni,
        (true, true, false) => Isa::Avx512,
        (true, false, _) => Isa::Avx2,
        _ => Isa::Reference,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best_isa() -> Isa {
    Isa::Reference
}

#[cfg(target_arch = "x86_64")]
fn best_bf16(amx: bool) -> Bf16 {
    if amx && amx_allowed() {
        Bf16::Amx
    } else if std::is_x86_feature_detected!("avx512bf16") {
        Bf16::Avx512
    } else {
        Bf16::Emulated
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best_bf16(_: bool) -> Bf16 {
    Bf16::Emulated
}

/// The processor has bf16 tiles, the system saves them, and this process may use them.
///
/// Linux grants the 8 KiB of tile state only on request, and to the whole process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx_allowed() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const TILE_AND_BF16: u32 = 1 << 24 | 1 << 22;
    const TILE_STATES: u64 = 0b11 << 17;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;

    #[target_feature(enable = "xsave")]
    fn enabled_states() -> u64 {
        // SAFETY: the function's feature is the one that the instruction needs; register 0 exists.
        unsafe { _xgetbv(0) }
    }

    if __cpuid(0).eax < 7 || !std::is_x86_feature_detected!("xsave") {
        return false;
    }
    let has_tiles = __cpuid_count(7, 0).edx & TILE_AND_BF16 == TILE_AND_BF16;
    // OSXSAVE: without it, reading the states would fault.
    let os_saves = __cpuid(1).ecx & (1 << 27) != 0;
    if !has_tiles || !os_saves {
        return false;
    }
    // SAFETY: `xsave` and OSXSAVE were seen just above.
    if unsafe { enabled_states() } & TILE_STATES != TILE_STATES {
        return false;
    }
    // SAFETY: the call takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx_allowed() -> bool {
    false
}
