//! A stand-in for `libcuda.so.1`: the driver functions that Hither calls, over emulated memory. Kernels
//! really run: a module's machine code is disassembled and emulated. Work is done when it is queued,
//! in order; what was asked of the device is written to a log that tests read.
//!
//! Environment: `HITHER_CUDA_ARCH` (80 or 90), `HITHER_CUDA_LOG` (a file), `HITHER_CUDA_FAULT` (`memory`:
//! allocations over 64 KiB fail; `limit`: no L2 can be set aside; `lost`: every launch fails as on a lost
//! device).

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use hither_sass::launch::{Arch, Launch, launch};
use hither_sass::memory::Memory;
use hither_sass::parse::{Program, parse};
use hither_sass::toolchain::Toolchain;

// Results, as the driver numbers them.
const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NOT_FOUND: c_int = 500;
const ILLEGAL_ADDRESS: c_int = 700;
const UNSUPPORTED_LIMIT: c_int = 215;
const DEVICE_LOST: c_int = 719;

/// An A100 but for its memory.
const TOTAL_BYTES: usize = 1 << 30;
const L2_BYTES: c_int = 40 << 20;
const PERSISTING_BYTES_MAX: c_int = 30 << 20;
const WINDOW_BYTES_MAX: c_int = 128 << 20;
const SMS: c_int = 4;
/// Allocations above this fail with the fault `memory`.
const SMALL_BYTES: usize = 64 << 10;

#[derive(Default)]
struct Driver {
    memory: Memory,
    /// Host memory that kernels may read: address and length.
    host: BTreeMap<u64, usize>,
    /// Kernels by handle − 1, with their shared memory.
    kernels: Vec<(Program, usize)>,
    /// Ranges of `kernels`, by handle − 1.
    modules: Vec<std::ops::Range<usize>>,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(Mutex::default);

fn driver() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fault(name: &str) -> bool {
    std::env::var("HITHER_CUDA_FAULT").is_ok_and(|fault| fault == name)
}

fn arch() -> Arch {
    match std::env::var("HITHER_CUDA_ARCH").as_deref() {
        Ok("90") => Arch::Sm90,
        _ => Arch::Sm80,
    }
}

fn log(line: &str) {
    let Some(path) = std::env::var_os("HITHER_CUDA_LOG") else { return };
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
        let _ = writeln!(file, "{line}");
    }
}

/// Writes a result through a pointer of the caller.
///
/// # Safety
/// `to` is valid for a write of `T`, as the driver's interface demands.
unsafe fn put<T>(to: *mut T, value: T) -> c_int {
    // SAFETY: as above.
    unsafe { to.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_: c_uint) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(count, 1) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, number: c_int) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(device, number) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, _: c_int) -> c_int {
    let text = c"Emulated GPU".to_bytes_with_nul();
    let len = text.len().min(len as usize);
    // SAFETY: the caller's buffer has `len` bytes.
    unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), len) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: c_int) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(bytes, TOTAL_BYTES) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    _: c_int,
) -> c_int {
    let (major, minor) = if arch() == Arch::Sm90 { (9, 0) } else { (8, 0) };
    let found = match attribute {
        16 => SMS,
        38 => L2_BYTES,
        75 => major,
        76 => minor,
        108 if fault("limit") => 0,
        108 => PERSISTING_BYTES_MAX,
        109 => WINDOW_BYTES_MAX,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller's pointer.
    unsafe { put(value, found) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _: c_int) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(context, std::ptr::without_provenance_mut(1)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_: c_int) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(_: *mut c_void) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetLimit(limit: c_int, value: usize) -> c_int {
    if fault("limit") || value > PERSISTING_BYTES_MAX as usize {
        return UNSUPPORTED_LIMIT;
    }
    log(&format!("limit {limit} {value}"));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _: c_uint) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(stream, std::ptr::without_provenance_mut(1)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(_: *mut c_void) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(_: *mut c_void, _: *mut c_void, _: c_uint) -> c_int {
    SUCCESS
}

/// `CUaccessPolicyWindow`.
#[repr(C)]
struct Window {
    base: u64,
    len: usize,
    hit_ratio: f32,
    hit: c_int,
    miss: c_int,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSetAttribute(
    _: *mut c_void,
    attribute: c_int,
    value: *const c_void,
) -> c_int {
    if attribute != 1 {
        return INVALID_VALUE;
    }
    // SAFETY: attribute 1 is the access policy window, and the caller's value is one.
    let window = unsafe { &*value.cast::<Window>() };
    let is_inside = driver().memory.read(window.base, window.len).is_ok();
    if window.len > WINDOW_BYTES_MAX as usize || !is_inside {
        return INVALID_VALUE;
    }
    let Window { base, len, hit_ratio, hit, miss } = window;
    log(&format!("window {base:#x} {len} {hit_ratio} {hit} {miss}"));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _: c_uint) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(event, std::ptr::without_provenance_mut(1)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(_: *mut c_void, _: *mut c_void) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(_: *mut c_void) -> c_int {
    SUCCESS
}

/// A millisecond, always: the emulator's time means nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    took: *mut f32,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(took, 1.0) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(_: *mut c_void) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut u64, len: usize) -> c_int {
    if len > TOTAL_BYTES || fault("memory") && len > SMALL_BYTES {
        return OUT_OF_MEMORY;
    }
    let base = driver().memory.add("device", vec![0xff; len], true);
    // SAFETY: the caller's pointer.
    unsafe { put(pointer, base) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: u64) -> c_int {
    if driver().memory.remove(pointer).is_some() { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    let used = driver().memory.bytes() as usize;
    // SAFETY: the caller's pointers.
    unsafe {
        put(free, TOTAL_BYTES - used.min(TOTAL_BYTES));
        put(total, TOTAL_BYTES)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(pointer: *mut *mut c_void, len: usize, _: c_uint) -> c_int {
    let words = vec![0u128; len.div_ceil(16)].into_boxed_slice();
    let memory: *mut u128 = Box::into_raw(words).cast();
    driver().host.insert(memory as u64, len);
    // SAFETY: the caller's pointer.
    unsafe { put(pointer, memory.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> c_int {
    let Some(len) = driver().host.remove(&(pointer as u64)) else { return INVALID_VALUE };
    let words = std::ptr::slice_from_raw_parts_mut(pointer.cast::<u128>(), len.div_ceil(16));
    // SAFETY: made by `cuMemHostAlloc` as a box of so many words, and removed from the list.
    drop(unsafe { Box::from_raw(words) });
    SUCCESS
}

/// # Safety
/// As for the driver's function: `from` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) -> c_int {
    // SAFETY: as above.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) };
    match driver().memory.host(to, len) {
        Ok(bytes) => bytes.copy_from_slice(from),
        Err(_) => return INVALID_VALUE,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    len: usize,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe { cuMemcpyHtoD_v2(to, from, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) -> c_int {
    let driver = driver();
    let Ok(bytes) = driver.memory.read(from, len) else { return INVALID_VALUE };
    // SAFETY: the caller's buffer has `len` bytes.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len) };
    SUCCESS
}

/// The bytes of an ELF file, whose length its own header tells.
///
/// # Safety
/// `image` is a whole ELF file of 64 bits, as a cubin is.
unsafe fn elf<'a>(image: *const u8) -> &'a [u8] {
    // SAFETY: an ELF header has 64 bytes.
    let header = unsafe { std::slice::from_raw_parts(image, 64) };
    let long = |at: usize| {
        u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes")) as usize
    };
    let short = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    // Section headers and program headers; the later of the two ends the file.
    let sections = long(40) + short(58) * short(60);
    let segments = long(32) + short(54) * short(56);
    // SAFETY: the file ends where its last table ends.
    unsafe { std::slice::from_raw_parts(image, sections.max(segments)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> c_int {
    // SAFETY: the caller's image is a cubin.
    let image = unsafe { elf(image.cast()) };
    let toolchain = Toolchain::get();
    let (text, usage) = toolchain.disassemble_image(image);
    let Ok(programs) = parse(&text) else { return INVALID_VALUE };
    let mut driver = driver();
    let first = driver.kernels.len();
    for program in programs {
        let shared =
            usage.iter().find(|(name, _)| *name == program.name).map_or(0, |(_, bytes)| *bytes);
        driver.kernels.push((program, shared));
    }
    let range = first..driver.kernels.len();
    log(&format!("module {} kernels", range.len()));
    driver.modules.push(range);
    // SAFETY: the caller's pointer.
    unsafe { put(module, std::ptr::without_provenance_mut(driver.modules.len())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> c_int {
    // SAFETY: the caller's name ends in zero.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let driver = driver();
    let range = driver.modules[module as usize - 1].clone();
    match range.clone().find(|index| driver.kernels[*index].0.name == name) {
        // SAFETY: the caller's pointer.
        Some(index) => unsafe { put(function, std::ptr::without_provenance_mut(index + 1)) },
        None => NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(_: *mut c_void) -> c_int {
    log("unloaded module");
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(_: *mut c_void) -> c_int {
    log("destroyed stream");
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _: c_uint,
    _: *mut c_void,
    _: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    if fault("lost") {
        return DEVICE_LOST;
    }
    // SAFETY: Hither hands parameters over as one buffer: marker, buffer, marker, its length.
    let parameters = unsafe {
        let len = *(*extra.add(3)).cast::<usize>();
        std::slice::from_raw_parts((*extra.add(1)).cast::<u8>(), len)
    };
    let mut driver = driver();
    let Driver { memory, host, kernels, .. } = &mut *driver;
    let (program, shared_bytes) = &kernels[function as usize - 1];
    for (base, len) in &*host {
        // SAFETY: allocated by `cuMemHostAlloc`, not freed, and the host does not write while it calls.
        let bytes = unsafe { std::slice::from_raw_parts(*base as *const u8, *len) };
        memory.mirror("host", *base, bytes);
    }
    let how = Launch {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes: *shared_bytes,
        parameters,
        arch: arch(),
    };
    let result = launch(program, &how, memory, &mut ());
    host.keys().for_each(|base| drop(memory.remove(*base)));
    log(&format!("launch {} {:?} {:?}", program.name, how.grid, how.block));
    match result {
        Ok(_) => SUCCESS,
        Err(fault) => {
            eprintln!("emulated GPU: {fault}");
            ILLEGAL_ADDRESS
        }
    }
}
