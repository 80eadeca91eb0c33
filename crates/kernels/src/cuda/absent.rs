//! The same interface as `device.rs` in a build without CUDA: no device can be opened.

use std::sync::Arc;

use super::{Error, Limits};

pub enum Device {}
pub enum Buffer {}
pub enum HostBuffer {}
pub enum Module {}

#[derive(Clone, Copy)]
pub enum Kernel {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Compute,
    Copy,
}

pub fn has_driver() -> bool {
    false
}

pub fn has_compiler() -> bool {
    false
}

pub fn list() -> Result<Vec<Limits>, Error> {
    Err(Error::NotBuilt)
}

impl Device {
    pub fn open(_: u32) -> Result<Arc<Self>, Error> {
        Err(Error::NotBuilt)
    }

    pub fn limits(&self) -> &Limits {
        match *self {}
    }

    pub fn alloc(self: &Arc<Self>, _: usize) -> Result<Buffer, Error> {
        match **self {}
    }

    pub fn upload(self: &Arc<Self>, _: &[u8]) -> Result<Buffer, Error> {
        match **self {}
    }

    pub fn alloc_host(self: &Arc<Self>, _: usize) -> Result<HostBuffer, Error> {
        match **self {}
    }

    pub fn module(&self, _: &str, _: &[String]) -> Result<Arc<Module>, Error> {
        match *self {}
    }

    pub fn kernel(&self, _: &Module, _: &str) -> Result<Kernel, Error> {
        match *self {}
    }

    /// # Safety
    /// Never called.
    pub unsafe fn launch(
        &self,
        _: Kernel,
        _: [u32; 3],
        _: [u32; 3],
        _: &[u8],
        _: Queue,
    ) -> Result<(), Error> {
        match *self {}
    }

    pub fn wait(&self, _: Queue, _: Queue) -> Result<(), Error> {
        match *self {}
    }

    pub fn synchronize(&self, _: Queue) -> Result<(), Error> {
        match *self {}
    }

    pub fn time(&self, _: impl FnOnce() -> Result<(), Error>) -> Result<f32, Error> {
        match *self {}
    }

    pub fn pin_window(&self, _: u64, _: usize) -> Result<usize, Error> {
        match *self {}
    }
}

impl Buffer {
    pub fn address(&self) -> u64 {
        match *self {}
    }

    pub fn len(&self) -> usize {
        match *self {}
    }

    pub fn is_empty(&self) -> bool {
        match *self {}
    }

    pub fn write(&self, _: usize, _: &[u8]) -> Result<(), Error> {
        match *self {}
    }

    /// # Safety
    /// Never called.
    pub unsafe fn write_queued(&self, _: &HostBuffer, _: usize, _: Queue) -> Result<(), Error> {
        match *self {}
    }

    pub fn read(&self, _: &mut [u8]) -> Result<(), Error> {
        match *self {}
    }
}

impl HostBuffer {
    pub fn address(&self) -> u64 {
        match *self {}
    }

    pub fn bytes(&self) -> &[u8] {
        match *self {}
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match *self {}
    }
}
