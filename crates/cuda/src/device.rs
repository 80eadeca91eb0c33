//! A GPU through the driver: memory, streams, kernels compiled for it, and its L2 window.
//!
//! The driver and NVRTC are looked for when a device is opened; neither is needed to build or to run
//! anything else. Calls that fail carry the driver's own name of the problem. Nothing here knows of
//! models.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result::{self as driver, DriverError};
use cudarc::driver::sys;
use cudarc::nvrtc;

use crate::{Error, Limits};

/// An opened GPU. The driver's objects are freed with the last handle.
pub struct Device {
    context: Context,
    limits: Limits,
    /// Kernels and the copies that they wait for.
    compute: Stream,
    /// Copies that run beside kernels.
    copy: Stream,
    /// By source and options.
    modules: Mutex<HashMap<Vec<String>, Arc<Module>>>,
}

/// The primary context of a GPU.
struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver's handles may be used from any thread; the driver locks what it must.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

struct Stream(sys::CUstream);

// SAFETY: as for `Context`.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// Which of the two streams a call is queued on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Compute,
    Copy,
}

/// Memory of the device.
pub struct Buffer {
    device: Arc<Device>,
    pointer: sys::CUdeviceptr,
    len: usize,
}

/// Memory of the host that the device reads over the bus, without a copy.
pub struct HostBuffer {
    device: Arc<Device>,
    pointer: *mut c_void,
    len: usize,
}

// SAFETY: the memory belongs to the buffer alone and is written only through `&mut`.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

/// Compiled source, loaded.
pub struct Module {
    module: sys::CUmodule,
    kernels: Mutex<HashMap<String, Kernel>>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a loaded module. Modules live as long as their device.
#[derive(Clone, Copy)]
pub struct Kernel(sys::CUfunction);

// SAFETY: as for `Context`.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Functions of the driver that an old one may lack: asked for once, as a missing one would otherwise
/// end the process when it is first called.
const NEEDED: [&str; 4] = ["cuInit", "cuStreamSetAttribute", "cuCtxSetLimit", "cuLaunchKernel"];

/// Whether the driver's library can be loaded.
pub fn has_driver() -> bool {
    // SAFETY: loading NVIDIA's library runs its constructors, which is what it is made for.
    unsafe { sys::is_culib_present() }
}

/// Whether the run-time compiler can be loaded.
pub fn has_compiler() -> bool {
    // SAFETY: as above.
    unsafe { nvrtc::sys::is_culib_present() }
}

fn check_symbols() -> Result<(), Error> {
    // SAFETY: the library was found; the symbols are only looked for, never called here.
    let library = unsafe { sys::culib() };
    for name in NEEDED {
        // SAFETY: as above.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
        if found.is_err() {
            return Err(Error::OldDriver { missing: name.into() });
        }
    }
    Ok(())
}

fn at(action: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| match is_final(error.0) {
        true => Error::Lost { action, problem: describe(error) },
        false => Error::Driver { action, problem: describe(error) },
    }
}

/// Whether the driver says that the context is in an inconsistent state, so that the process must begin
/// anew to use the device.
fn is_final(error: sys::CUresult) -> bool {
    use sys::CUresult::*;
    matches!(
        error,
        CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_DEINITIALIZED
            | CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_NO_DEVICE
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
    )
}

/// The driver's name of an error: `CUDA_ERROR_OUT_OF_MEMORY`.
fn describe(error: DriverError) -> String {
    format!("{:?}", error.0)
}

impl Device {
    /// Opens the GPU of this number.
    pub fn open(number: u32) -> Result<Arc<Self>, Error> {
        if !has_driver() {
            return Err(Error::NoDriver);
        }
        check_symbols()?;
        driver::init().map_err(at("start the driver"))?;
        let count = driver::device::get_count().map_err(at("count GPUs"))?;
        if i64::from(number) >= i64::from(count) {
            return Err(Error::NoDevice { number, count: count.max(0) as u32 });
        }
        let device = driver::device::get(number as i32).map_err(at("open the GPU"))?;
        // SAFETY: the device comes from the driver; the context is released when it is dropped.
        let context = unsafe { driver::primary_ctx::retain(device) }.map_err(at("open the GPU"))?;
        let context = Context { device, context };
        context.bind()?;
        let limits = context.limits()?;
        let stream = || {
            let kind = driver::stream::StreamKind::NonBlocking;
            driver::stream::create(kind).map(Stream).map_err(at("make a stream"))
        };
        let (compute, copy) = (stream()?, stream()?);
        Ok(Arc::new(Self { context, limits, compute, copy, modules: Mutex::default() }))
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    fn stream(&self, queue: Queue) -> sys::CUstream {
        match queue {
            Queue::Compute => self.compute.0,
            Queue::Copy => self.copy.0,
        }
    }

    /// Memory of the device; at least one byte, so that every buffer has an address.
    pub fn alloc(self: &Arc<Self>, len: usize) -> Result<Buffer, Error> {
        self.context.bind()?;
        // SAFETY: the context is current, and the memory is freed by the buffer alone.
        match unsafe { driver::malloc_sync(len.max(1)) } {
            Ok(pointer) => Ok(Buffer { device: Arc::clone(self), pointer, len }),
            Err(error) if error.0 == sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => {
                let free = driver::mem_get_info().map_or(0, |(free, _)| free as u64);
                Err(Error::OutOfMemory { bytes: len as u64, free })
            }
            Err(error) => Err(at("allocate memory")(error)),
        }
    }

    pub fn upload(self: &Arc<Self>, bytes: &[u8]) -> Result<Buffer, Error> {
        let buffer = self.alloc(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Host memory that the device can read.
    pub fn alloc_host(self: &Arc<Self>, len: usize) -> Result<HostBuffer, Error> {
        self.context.bind()?;
        // SAFETY: the context is current, and the memory is freed by the buffer alone.
        let pointer = unsafe { driver::malloc_host(len.max(1), sys::CU_MEMHOSTALLOC_DEVICEMAP) };
        let pointer = pointer.map_err(at("allocate host memory"))?;
        // SAFETY: so many bytes were allocated. Zeroed once, so that every byte is initialised.
        unsafe { pointer.cast::<u8>().write_bytes(0, len.max(1)) };
        Ok(HostBuffer { device: Arc::clone(self), pointer, len })
    }

    /// Compiles a source for this GPU and loads it; once per source and options.
    pub fn module(&self, source: &str, options: &[String]) -> Result<Arc<Module>, Error> {
        let key = [&[source.to_string()], options].concat();
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(&key) {
            return Ok(Arc::clone(module));
        }
        self.context.bind()?;
        let cubin = compile(source, options, self.limits.version)?;
        // SAFETY: the image is a whole cubin, as the compiler made it for this architecture.
        let module = unsafe { driver::module::load_data(cubin.as_ptr().cast()) };
        let module = module.map_err(at("load the kernels"))?;
        let module = Arc::new(Module { module, kernels: Mutex::default() });
        modules.insert(key, Arc::clone(&module));
        Ok(module)
    }

    pub fn kernel(&self, module: &Module, name: &str) -> Result<Kernel, Error> {
        let mut kernels = module.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name) {
            return Ok(*kernel);
        }
        self.context.bind()?;
        let c_name = CString::new(name).map_err(|_| Error::Kernel { name: name.into() })?;
        // SAFETY: the module is loaded and stays so as long as the device.
        let found = unsafe { driver::module::get_function(module.module, c_name) };
        let kernel = found.map(Kernel).map_err(|_| Error::Kernel { name: name.into() })?;
        kernels.insert(name.into(), kernel);
        Ok(kernel)
    }

    /// Queues a kernel. `parameters` are laid out as its C declaration has them.
    ///
    /// # Safety
    /// The parameters are those that the kernel declares, and every address among them stays valid until the
    /// queue is synchronised: what the kernel writes belongs to buffers that nobody else uses meanwhile.
    pub unsafe fn launch(
        &self,
        kernel: Kernel,
        grid: [u32; 3],
        block: [u32; 3],
        parameters: &[u8],
        queue: Queue,
    ) -> Result<(), Error> {
        self.context.bind()?;
        let mut len = parameters.len();
        // CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END.
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(1),
            parameters.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(2),
            (&raw mut len).cast(),
            std::ptr::null_mut(),
        ];
        // SAFETY: the driver copies the parameters before it returns; the caller answers for what they
        // point to.
        let launched = unsafe {
            sys::cuLaunchKernel(
                kernel.0,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                0,
                self.stream(queue),
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        launched.result().map_err(at("launch a kernel"))
    }

    /// Lets later work of one queue wait for the earlier work of the other.
    pub fn wait(&self, queue: Queue, other: Queue) -> Result<(), Error> {
        self.context.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = driver::event::create(flags).map_err(at("make an event"))?;
        let wait_flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and streams are live; the driver keeps a destroyed event until it has passed.
        unsafe {
            let queued = driver::event::record(event, self.stream(other))
                .and_then(|()| driver::stream::wait_event(self.stream(queue), event, wait_flags));
            let destroyed = driver::event::destroy(event);
            queued.and(destroyed).map_err(at("order two streams"))
        }
    }

    /// Waits until a queue is done; what went wrong in it is told here.
    pub fn synchronize(&self, queue: Queue) -> Result<(), Error> {
        self.context.bind()?;
        // SAFETY: the stream is live.
        unsafe { driver::stream::synchronize(self.stream(queue)) }.map_err(at("run the kernels"))
    }

    /// Milliseconds that the compute queue takes for `work`, by the device's own clock.
    pub fn time(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<f32, Error> {
        self.context.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let event = || driver::event::create(flags).map_err(at("make an event"));
        let (start, end) = (event()?, event()?);
        let stream = self.compute.0;
        // SAFETY: events and stream are live until the end of this function.
        unsafe { driver::event::record(start, stream) }.map_err(at("record an event"))?;
        let worked = work();
        // SAFETY: as above.
        let took = unsafe {
            driver::event::record(end, stream)
                .and_then(|()| driver::event::synchronize(end))
                .and_then(|()| driver::event::elapsed(start, end))
        };
        // SAFETY: both have passed, or the stream is lost.
        unsafe {
            let _ = driver::event::destroy(start);
            let _ = driver::event::destroy(end);
        }
        worked?;
        took.map_err(at("run the kernels"))
    }

    /// Asks L2 to keep `len` bytes from `base` on, for kernels of the compute queue. Returns the bytes
    /// that the window covers: no more than the device allows.
    pub fn pin_window(&self, base: u64, len: usize) -> Result<usize, Error> {
        let len = len.min(self.limits.window_bytes_max);
        let carve_out = len.min(self.limits.persisting_bytes_max);
        if carve_out == 0 {
            return Ok(0);
        }
        self.context.bind()?;
        let limit = sys::CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
        driver::ctx::set_limit(limit, carve_out).map_err(at("reserve a part of L2"))?;
        let window = sys::CUaccessPolicyWindow {
            base_ptr: base as *mut c_void,
            num_bytes: len,
            // Where the window is larger than the part of L2, only so many of its lines are kept.
            hitRatio: (carve_out as f64 / len as f64) as f32,
            hitProp: sys::CUaccessProperty::CU_ACCESS_PROPERTY_PERSISTING,
            missProp: sys::CUaccessProperty::CU_ACCESS_PROPERTY_STREAMING,
        };
        let value = sys::CUstreamAttrValue { accessPolicyWindow: window };
        let name = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
        // SAFETY: the stream is live, and the value is of the kind that the attribute names.
        let set = unsafe { sys::cuStreamSetAttribute(self.compute.0, name, &value) };
        set.result().map_err(at("set the L2 window"))?;
        Ok(len)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
            return;
        }
        let modules = self.modules.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: streams and modules were made once, and whoever queued work or holds a kernel holds the
        // device too. On a lost device there is nothing left to give back.
        unsafe {
            for module in modules.values() {
                let _ = driver::module::unload(module.module);
            }
            for stream in [&self.compute, &self.copy] {
                let _ = driver::stream::destroy(stream.0);
            }
        }
    }
}

impl Context {
    fn bind(&self) -> Result<(), Error> {
        // SAFETY: the context is retained until it is dropped.
        unsafe { driver::ctx::set_current(self.context) }.map_err(at("use the GPU"))
    }

    fn limits(&self) -> Result<Limits, Error> {
        use sys::CUdevice_attribute_enum as attribute;
        let get = |which| {
            // SAFETY: the device comes from the driver.
            let value = unsafe { driver::device::get_attribute(self.device, which) };
            value.map(|value| value.max(0) as usize).map_err(at("read the GPU's limits"))
        };
        // SAFETY: as above.
        let memory_bytes = unsafe { driver::device::total_mem(self.device) };
        Ok(Limits {
            name: driver::device::get_name(self.device).map_err(at("read the GPU's name"))?,
            version: (
                get(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
                get(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
            ),
            sms: get(attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            memory_bytes: memory_bytes.map_err(at("read the GPU's memory"))?,
            l2_bytes: get(attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            persisting_bytes_max: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE)?,
            window_bytes_max: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE)?,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, when it was made. A lost device cannot be released; nothing follows.
        let _ = unsafe { driver::primary_ctx::release(self.device) };
    }
}

impl Buffer {
    pub fn address(&self) -> u64 {
        self.pointer
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes to the device, before the call returns.
    pub fn write(&self, at_byte: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(at_byte, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.context.bind()?;
        let to = self.pointer + at_byte as u64;
        // SAFETY: the range lies in this buffer, as was checked.
        unsafe { driver::memcpy_htod_sync(to, bytes) }.map_err(at("copy to the GPU"))
    }

    /// Queues a copy from the host.
    ///
    /// # Safety
    /// Nobody writes to `from` until the queue is synchronised.
    pub unsafe fn write_queued(
        &self,
        from: &HostBuffer,
        len: usize,
        queue: Queue,
    ) -> Result<(), Error> {
        self.check(0, len);
        if len == 0 {
            return Ok(());
        }
        self.device.context.bind()?;
        let stream = self.device.stream(queue);
        // SAFETY: both ranges lie in their buffers, and both buffers outlive the queue: dropping one
        // waits for the device.
        unsafe { driver::memcpy_htod_async(self.pointer, &from.bytes()[..len], stream) }
            .map_err(at("copy to the GPU"))
    }

    /// Copies bytes from the device, behind the work of the compute queue.
    pub fn read(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.check(0, bytes.len());
        self.device.synchronize(Queue::Compute)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies in this buffer, as was checked.
        unsafe { driver::memcpy_dtoh_sync(bytes, self.pointer) }.map_err(at("copy from the GPU"))
    }

    fn check(&self, at_byte: usize, len: usize) {
        assert!(at_byte + len <= self.len, "{len} bytes at {at_byte} of a buffer of {}", self.len);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.device.context.bind().is_ok() {
            // SAFETY: allocated once; freeing waits for the work that uses it. On a lost device there
            // is nothing left to free.
            let _ = unsafe { driver::free_sync(self.pointer) };
        }
    }
}

impl HostBuffer {
    /// The address by which the device reads it: with unified addresses, that of the host.
    pub fn address(&self) -> u64 {
        self.pointer as u64
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes were allocated and zeroed.
        unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut` is unique.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // The device may still read it.
        for queue in [Queue::Compute, Queue::Copy] {
            let _ = self.device.synchronize(queue);
        }
        // SAFETY: allocated once, and no work uses it any more.
        let _ = unsafe { driver::free_host(self.pointer) };
    }
}

/// Machine code for an architecture, by NVRTC.
fn compile(source: &str, options: &[String], version: (u32, u32)) -> Result<Vec<u8>, Error> {
    if !has_compiler() {
        return Err(Error::NoCompiler);
    }
    let failed = |log: String| Error::Compile { log };
    let source = CString::new(source).map_err(|_| failed("a zero byte in the source".into()))?;
    let program =
        nvrtc::result::create_program(&source, None).map_err(|e| failed(format!("{e:?}")))?;
    let mut all =
        vec![format!("--gpu-architecture=sm_{}{}", version.0, version.1), "-std=c++17".into()];
    all.extend_from_slice(options);
    // SAFETY: the program is live until it is destroyed below, and buffers have the sizes that the
    // compiler asked for.
    unsafe {
        let compiled = nvrtc::result::compile_program(program, &all);
        let cubin = match compiled {
            Ok(()) => {
                let mut len = 0;
                let mut cubin = Vec::new();
                nvrtc::sys::nvrtcGetCUBINSize(program, &mut len)
                    .result()
                    .and_then(|()| {
                        cubin.resize(len, 0u8);
                        nvrtc::sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()).result()
                    })
                    .map(|()| cubin)
                    .map_err(|error| failed(format!("{error:?}")))
            }
            Err(error) => {
                let log = nvrtc::result::get_program_log(program).unwrap_or_default();
                let log: Vec<u8> = log.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
                Err(failed(format!("{error:?}: {}", String::from_utf8_lossy(&log))))
            }
        };
        let _ = nvrtc::result::destroy_program(program);
        cubin
    }
}

/// The GPUs that the driver shows; for people.
pub fn list() -> Result<Vec<Limits>, Error> {
    if !has_driver() {
        return Err(Error::NoDriver);
    }
    check_symbols()?;
    driver::init().map_err(at("start the driver"))?;
    let count = driver::device::get_count().map_err(at("count GPUs"))?;
    (0..count.max(0) as u32).map(|number| Device::open(number).map(|d| d.limits.clone())).collect()
}
