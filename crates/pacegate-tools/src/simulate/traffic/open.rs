//! Opens files and standard input, with transparent decompression.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// The location of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Standard input, which can be read only once.
    Input,
    /// A file.
    File(PathBuf),
}

/// Number of bytes read so far, before decompression.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

struct Counted<R> {
    inner: R,
    progress: Progress,
}

/// Decodes consecutive Zstandard frames; the decoder handles only one.
struct Zstd<R: Read> {
    decoder: Option<StreamingDecoder<R, FrameDecoder>>,
}

const BUFFER: usize = 64 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Magic number of a skippable frame, without its lowest byte.
const SKIPPED: [u8; 3] = [0x2a, 0x4d, 0x18];

impl Place {
    /// Opens the log and decompresses it, if needed.
    pub(super) fn open(&self, progress: &Progress) -> io::Result<Box<dyn Read>> {
        let plain: Box<dyn Read> = match self {
            Self::Input => Box::new(io::stdin()),
            Self::File(path) => Box::new(File::open(path)?),
        };
        let counted = Counted { inner: plain, progress: progress.clone() };
        let mut buffered = BufReader::with_capacity(BUFFER, counted);
        let start = buffered.fill_buf()?;
        if start.starts_with(&GZIP) {
            return Ok(Box::new(MultiGzDecoder::new(buffered)));
        }
        if start.starts_with(&ZSTD) || is_skipped(start) {
            return Ok(Box::new(Zstd { decoder: frame(buffered)? }));
        }
        Ok(Box::new(buffered))
    }

    /// Returns the number of bytes, if known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Input => None,
            Self::File(path) => {
                path.metadata().ok().filter(std::fs::Metadata::is_file).map(|data| data.len())
            }
        }
    }

    /// Returns true for standard input and named pipes, which can be read only once. False if the file does
    /// not exist.
    pub fn is_read_once(&self) -> bool {
        match self {
            Self::Input => true,
            Self::File(path) => path.metadata().is_ok_and(|data| !data.is_file() && !data.is_dir()),
        }
    }

    /// Returns the display name.
    pub fn name(&self) -> String {
        match self {
            Self::Input => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Self {
        if path == Path::new("-") { Self::Input } else { Self::File(path.to_owned()) }
    }
}

impl Progress {
    /// Returns the number of bytes read.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.progress.0.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(mut decoder) = self.decoder.take() {
            let length = decoder.read(buffer)?;
            if length > 0 || buffer.is_empty() {
                self.decoder = Some(decoder);
                return Ok(length);
            }
            self.decoder = frame(decoder.into_inner())?;
        }
        Ok(0)
    }
}

/// Returns a decoder for the next frame that is not skippable.
fn frame<R: BufRead>(mut input: R) -> io::Result<Option<StreamingDecoder<R, FrameDecoder>>> {
    loop {
        let start = input.fill_buf()?;
        if start.is_empty() {
            return Ok(None);
        }
        if !is_skipped(start) {
            let decoder = StreamingDecoder::new(input);
            let unsound = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            return decoder.map(Some).map_err(unsound);
        }
        let mut head = [0; 8];
        input.read_exact(&mut head)?;
        let [.., a, b, c, d] = head;
        let length = u32::from_le_bytes([a, b, c, d]).into();
        io::copy(&mut input.by_ref().take(length), &mut io::sink())?;
    }
}

fn is_skipped(start: &[u8]) -> bool {
    start.get(1..4) == Some(&SKIPPED) && start[0] & 0xf0 == 0x50
}
