//! The codecs of message payloads. Sizes come from strangers, so the limit is checked before anything is allocated.

use std::io::Read as _;

use bytes::Bytes;

use crate::proto::CompressionType;

/// Why a payload cannot be decompressed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    #[error("payload of {uncompressed_bytes} bytes once decompressed is larger than the limit of {limit_bytes}")]
    TooLarge { uncompressed_bytes: usize, limit_bytes: usize },
    #[error("payload does not decompress to the {expected_bytes} bytes its metadata claims")]
    WrongSize { expected_bytes: usize },
    #[error("cannot decompress {codec:?}: {reason}")]
    Damaged { codec: CompressionType, reason: String },
}

/// Decompresses a payload.
///
/// `uncompressed_bytes`: what the metadata claims (`uncompressed_size`); the result has exactly this length, and never more
/// is allocated. Without compression the payload is returned as it is.
pub fn decompress(
    codec: CompressionType,
    payload: &Bytes,
    uncompressed_bytes: usize,
    limit_bytes: usize,
) -> Result<Bytes, DecompressError> {
    if codec == CompressionType::None {
        return Ok(payload.clone());
    }
    if uncompressed_bytes > limit_bytes {
        return Err(DecompressError::TooLarge { uncompressed_bytes, limit_bytes });
    }
    let damaged = |reason: String| DecompressError::Damaged { codec, reason };
    let wrong_size = DecompressError::WrongSize { expected_bytes: uncompressed_bytes };
    let mut out = vec![0; uncompressed_bytes];
    let len = match codec {
        CompressionType::None => unreachable!("returned above"),
        CompressionType::Lz4 => {
            lz4_flex::block::decompress_into(payload, &mut out).map_err(|error| damaged(error.to_string()))?
        }
        CompressionType::Zlib => {
            // Clients end the stream with a sync flush instead of the trailer: what counts is that the output is full.
            let mut zlib = flate2::Decompress::new(true);
            zlib.decompress(payload, &mut out, flate2::FlushDecompress::Sync)
                .map_err(|error| damaged(error.to_string()))?;
            zlib.total_out() as usize
        }
        CompressionType::Zstd => decompress_zstd(payload, &mut out).map_err(damaged)?,
        CompressionType::Snappy => {
            // Refuses an output that is too small.
            snap::raw::Decoder::new().decompress(payload, &mut out).map_err(|error| damaged(error.to_string()))?
        }
    };
    if len == uncompressed_bytes { Ok(out.into()) } else { Err(wrong_size) }
}

/// Compresses a payload. The caller puts the codec and the size of `payload` into the metadata.
pub fn compress(codec: CompressionType, payload: &Bytes) -> Bytes {
    match codec {
        CompressionType::None => payload.clone(),
        CompressionType::Lz4 => lz4_flex::block::compress(payload).into(),
        CompressionType::Zlib => {
            let mut zlib = flate2::read::ZlibEncoder::new(&payload[..], flate2::Compression::default());
            let mut out = Vec::new();
            zlib.read_to_end(&mut out).expect("reading from memory cannot fail");
            out.into()
        }
        CompressionType::Zstd => {
            ruzstd::encoding::compress_to_vec(&payload[..], ruzstd::encoding::CompressionLevel::Fastest).into()
        }
        CompressionType::Snappy => {
            snap::raw::Encoder::new().compress_vec(payload).expect("a payload is far below 4 GiB").into()
        }
    }
}

/// Fills `out` and returns how much of it, or `out.len() + 1` if there is more to come.
fn decompress_zstd(payload: &[u8], out: &mut [u8]) -> Result<usize, String> {
    let mut zstd = ruzstd::decoding::StreamingDecoder::new(payload).map_err(|error| error.to_string())?;
    let mut len = 0;
    while len < out.len() {
        match zstd.read(&mut out[len..]).map_err(|error| error.to_string())? {
            0 => return Ok(len),
            read => len += read,
        }
    }
    let more = zstd.read(&mut [0]).map_err(|error| error.to_string())?;
    Ok(len + more)
}
