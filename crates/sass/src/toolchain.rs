//! NVIDIA's compilers from PyPI, pinned, in a cache below `target`; and compiled kernels beside them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Of all wheels. The emulator follows this compiler's instructions.
pub const VERSION: &str = "13.4.92";
const WHEELS: [&str; 7] = [
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cuobjdump",
    "nvidia-cuda-nvdisasm",
    "nvidia-cuda-crt",
    "nvidia-nvvm",
];

/// Installed compilers.
#[derive(Clone, Debug)]
pub struct Toolchain {
    root: PathBuf,
    cache: PathBuf,
}

/// A compiled source.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub cubin: PathBuf,
    /// What the compiler reported: registers, spills, warnings.
    pub log: String,
}

/// What the compiler reported of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub kernel: String,
    pub registers: u32,
    pub spill_bytes: u32,
    pub stack_bytes: u32,
    pub shared_bytes: u32,
}

impl Toolchain {
    /// Installs the compilers unless they are in the cache. Several processes may call at once.
    ///
    /// # Panics
    /// If they cannot be installed: tests that need them cannot say anything then.
    pub fn get() -> Self {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let cache = std::env::var_os("HITHER_CUDA_CACHE")
            .map_or_else(|| target.join("cuda"), PathBuf::from);
        let site = cache.join(VERSION);
        let found = Self { root: site.join("nvidia/cu13"), cache };
        let _lock = found.lock("install");
        let done = site.join("installed");
        if !done.exists() {
            let wheels = WHEELS.map(|name| format!("{name}=={VERSION}"));
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"])
                .args(["--disable-pip-version-check", "--upgrade", "--target"])
                .arg(&site)
                .args(wheels);
            run(&mut pip);
            fs::write(&done, VERSION).expect("write to the cache");
        }
        found
    }

    fn lock(&self, name: &str) -> File {
        fs::create_dir_all(&self.cache).expect("make the cache");
        let path = self.cache.join(format!("{name}.lock"));
        let file = File::create(path).expect("open a lock file");
        file.lock().expect("lock the cache");
        file
    }

    /// Where NVIDIA's headers are.
    pub fn include(&self) -> PathBuf {
        self.root.join("include")
    }

    /// Where NVRTC's libraries are.
    pub fn lib(&self) -> PathBuf {
        self.root.join("lib")
    }

    /// Compiles a source for an architecture; every warning is an error. The result is kept.
    pub fn compile(&self, source: &str, arch: &str, defines: &[String]) -> Compiled {
        let mut key = Hash::default();
        for part in [source, arch, VERSION].into_iter().chain(defines.iter().map(String::as_str)) {
            key.add(part);
        }
        let stem = self.cache.join(format!("{arch}-{:016x}", key.0));
        let (cubin, log) = (stem.with_extension("cubin"), stem.with_extension("log"));
        if !log.exists() {
            let lock_name = format!("{arch}-{:016x}", key.0);
            let lock = self.lock(&lock_name);
            if !log.exists() {
                let source_file = stem.with_extension("cu");
                fs::write(&source_file, source).expect("write the source");
                let mut nvcc = Command::new(self.root.join("bin/nvcc"));
                nvcc.args(["-cubin", "-std=c++17", "-Werror", "all-warnings", "-Xptxas", "-v"])
                    .arg(format!("-arch={arch}"))
                    .args(defines)
                    .arg("-o")
                    .args([&cubin, &source_file]);
                let done = run(&mut nvcc);
                fs::write(&log, &done.stderr).expect("write the log");
                let _ = fs::remove_file(source_file);
            }
            drop(lock);
            let _ = fs::remove_file(self.cache.join(format!("{lock_name}.lock")));
        }
        let log = fs::read_to_string(log).expect("read the log");
        Compiled { cubin, log }
    }

    /// The machine code of a compiled source, as text.
    pub fn disassemble(&self, compiled: &Compiled) -> String {
        let text = compiled.cubin.with_extension("sass");
        if !text.exists() {
            let mut cuobjdump = Command::new(self.root.join("bin/cuobjdump"));
            let done = run(cuobjdump.arg("-sass").arg(&compiled.cubin));
            let temporary = text.with_extension(format!("sass-{}", std::process::id()));
            fs::write(&temporary, &done.stdout).expect("write the disassembly");
            fs::rename(temporary, &text).expect("rename the disassembly");
        }
        fs::read_to_string(text).expect("read the disassembly")
    }
}

impl Toolchain {
    /// The machine code of a loaded image as text, and the static shared memory of its kernels.
    pub fn disassemble_image(&self, image: &[u8]) -> (String, Vec<(String, usize)>) {
        let mut key = Hash::default();
        image.iter().for_each(|byte| key.add_byte(*byte));
        let cubin = self.cache.join(format!("image-{:016x}-{}.cubin", key.0, std::process::id()));
        fs::write(&cubin, image).expect("write the image");
        let cuobjdump = |option: &str| {
            let done = run(Command::new(self.root.join("bin/cuobjdump")).arg(option).arg(&cubin));
            String::from_utf8(done.stdout).expect("text")
        };
        let (text, usage) = (cuobjdump("-sass"), cuobjdump("-res-usage"));
        let _ = fs::remove_file(&cubin);
        // ` Function bags_fp32_sum:`, then ` REG:32 STACK:0 SHARED:16384 …`.
        let mut shared = Vec::new();
        let mut name = String::new();
        for line in usage.lines().map(str::trim) {
            if let Some(function) = line.strip_prefix("Function ") {
                name = function.trim_end_matches(':').to_string();
            }
            let bytes = line.split_whitespace().find_map(|word| word.strip_prefix("SHARED:"));
            if let Some(bytes) = bytes.and_then(|bytes| bytes.parse().ok()) {
                shared.push((name.clone(), bytes));
            }
        }
        (text, shared)
    }
}

impl Compiled {
    /// One report per kernel, in the order of their names.
    pub fn reports(&self) -> Vec<Report> {
        let mut reports: Vec<Report> = Vec::new();
        for line in self.log.lines() {
            if let Some(rest) = line.split("Compiling entry function '").nth(1) {
                let kernel = rest.split('\'').next().unwrap_or_default().to_string();
                reports.push(Report { kernel, ..Report::default() });
            }
            let Some(report) = reports.last_mut() else { continue };
            let before = |unit: &str| {
                let text = line.split(unit).next().filter(|text| text.len() < line.len())?;
                let start = text.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
                text[start..].parse::<u32>().ok()
            };
            if let Some(bytes) = before(" bytes stack frame") {
                report.stack_bytes = bytes;
                report.spill_bytes = before(" bytes spill stores").unwrap_or(0)
                    + before(" bytes spill loads").unwrap_or(0);
            }
            if let Some(registers) = before(" registers") {
                report.registers = registers;
                report.shared_bytes = before(" bytes smem").unwrap_or(0);
            }
        }
        reports.sort_by(|a, b| a.kernel.cmp(&b.kernel));
        reports
    }
}

/// FNV-1a.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn add(&mut self, text: &str) {
        text.bytes().chain([0]).for_each(|byte| self.add_byte(byte));
    }

    fn add_byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
}

/// Runs a program to its end.
///
/// # Panics
/// If it fails.
pub fn run(command: &mut Command) -> Output {
    let done = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?} failed:\n{said}");
    done
}
