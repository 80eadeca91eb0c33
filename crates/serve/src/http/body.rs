//! Bodies: received into one aligned buffer, decompressed within the limit, compressed if asked.

use std::io::Read as _;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder, ZlibDecoder, ZlibEncoder};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt as _;

use super::{HEADER_LENGTH, lists};
use crate::error::Error;
use crate::server::Limits;

/// A request's body.
pub(super) struct Received {
    pub bytes: Bytes,
    /// Bytes of JSON in front of binary tensors; `None` if all is JSON.
    pub header_length: Option<usize>,
}

/// Tensors begin at a multiple of this, so that ids can be read where they are.
const ALIGNMENT: usize = 8;
/// Bytes that are reserved before anything has arrived, however long the body claims to be.
const RESERVE_MAX: usize = 1 << 20;
/// Bytes and time that are spent on a body that is refused for its size.
const DISCARD_BYTES_MAX: usize = 1 << 20;
const DISCARD_MAX: Duration = Duration::from_secs(1);

pub(super) async fn read(
    request: Request,
    limits: &Limits,
) -> Result<(HeaderMap, Received), Error> {
    let (head, body) = request.into_parts();
    let limit = limits.request_bytes_max;
    let length = |name: &str| -> Result<Option<usize>, Error> {
        let Some(value) = head.headers.get(name) else { return Ok(None) };
        let length = value.to_str().ok().and_then(|value| value.trim().parse().ok());
        length.map(Some).ok_or_else(|| Error::malformed(format!("{name} is not a number of bytes")))
    };
    let header_length = length(HEADER_LENGTH)?;
    let claimed = length("content-length")?.unwrap_or(0);
    if claimed > limit {
        discard(body).await;
        return Err(Error::TooLarge { limit });
    }
    let padding = header_length.map_or(0, |length| length.wrapping_neg() % ALIGNMENT);
    let bytes = gather(body, padding, claimed, limit).await?;
    let bytes = match head.headers.get(header::CONTENT_ENCODING) {
        None => bytes,
        Some(encoding) => decompressed(&bytes, encoding, padding, limit)?,
    };
    if header_length.is_some_and(|length| length > bytes.len()) {
        return Err(Error::malformed(format!(
            "{HEADER_LENGTH} is larger than the request's body of {} bytes",
            bytes.len()
        )));
    }
    Ok((head.headers, Received { bytes, header_length }))
}

/// Takes a body that nobody wants off the line, within bounds: a client whose bytes are left there may
/// see its connection reset instead of the answer.
async fn discard(mut body: Body) {
    let rest = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, bytes::Bytes::len);
            if bytes > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_MAX, rest).await;
}

/// All of a body, behind `padding` bytes that the result leaves out.
async fn gather(
    mut body: Body,
    padding: usize,
    claimed: usize,
    limit: usize,
) -> Result<Bytes, Error> {
    let mut buffer = Vec::with_capacity(padding + claimed.min(RESERVE_MAX));
    buffer.resize(padding, 0);
    while let Some(frame) = body.frame().await {
        let early = |error| Error::malformed(format!("the request's body ended early: {error}"));
        let frame = frame.map_err(early)?;
        let Some(data) = frame.data_ref() else { continue };
        if buffer.len() - padding + data.len() > limit {
            return Err(Error::TooLarge { limit });
        }
        buffer.extend_from_slice(data);
    }
    Ok(Bytes::from(buffer).slice(padding..))
}

fn decompressed(
    bytes: &[u8],
    encoding: &HeaderValue,
    padding: usize,
    limit: usize,
) -> Result<Bytes, Error> {
    let mut buffer = vec![0; padding];
    // One byte more than allowed tells a body at the limit from one beyond it.
    let most = limit as u64 + 1;
    let read = match encoding.as_bytes() {
        b"identity" => return Ok(Bytes::copy_from_slice(bytes)),
        b"gzip" => GzDecoder::new(bytes).take(most).read_to_end(&mut buffer),
        b"deflate" => ZlibDecoder::new(bytes).take(most).read_to_end(&mut buffer),
        _ => return Err(Error::malformed("unknown Content-Encoding; expected gzip or deflate")),
    };
    match read {
        Ok(read) if read > limit => Err(Error::TooLarge { limit }),
        Ok(_) => Ok(Bytes::from(buffer).slice(padding..)),
        Err(error) => Err(Error::malformed(format!("the body cannot be decompressed: {error}"))),
    }
}

/// An answer of JSON and perhaps tensors behind it, compressed if the client asked for it.
pub(super) fn respond(head: &HeaderMap, json: Vec<u8>, tensors: Option<Bytes>) -> Response {
    let mut bytes = json;
    if let Some(tensors) = tensors {
        bytes.extend_from_slice(&tensors);
    }
    let accepts = |word| lists(head, header::ACCEPT_ENCODING, word);
    let (encoding, bytes) = if accepts("gzip") {
        ("gzip", compressed(GzEncoder::new(&bytes[..], Compression::fast())))
    } else if accepts("deflate") {
        ("deflate", compressed(ZlibEncoder::new(&bytes[..], Compression::fast())))
    } else {
        ("", bytes)
    };
    let mut response = Response::new(Body::from(bytes));
    if !encoding.is_empty() {
        let encoding = HeaderValue::from_static(encoding);
        response.headers_mut().insert(header::CONTENT_ENCODING, encoding);
    }
    response
}

fn compressed(mut encoder: impl std::io::Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    encoder.read_to_end(&mut bytes).expect("reading from memory");
    bytes
}
