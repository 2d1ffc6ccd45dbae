//! The files that are read when the configuration is loaded.

use std::{
    cell::RefCell, collections::BTreeMap, fs, io, io::Read, path::Path, path::PathBuf, rc::Rc,
};

use super::yaml;

/// A cache of files for one load of the configuration. Each file is read once, so all readers see the same version.
#[derive(Debug, Default)]
pub(crate) struct Files {
    contents: RefCell<BTreeMap<PathBuf, Contents>>,
}

/// The bytes of a file, or the kind and message of the error. `io::Error` cannot be cloned.
type Contents = Result<Rc<[u8]>, (io::ErrorKind, String)>;

impl Files {
    /// Returns the contents of a file as of the first call. Reads at most one byte more than [`yaml::MAX_BYTES`], so
    /// that the caller can detect a file that is too long.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Rc<[u8]>> {
        let mut contents = self.contents.borrow_mut();
        let read = contents.entry(path.to_owned()).or_insert_with(|| {
            read(path).map(Rc::from).map_err(|error| (error.kind(), error.to_string()))
        });
        read.clone().map_err(|(kind, message)| io::Error::new(kind, message))
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let max = u64::try_from(yaml::MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let (path, missing) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&path, "one").unwrap();
        let files = Files::default();
        assert_eq!(&*files.read(&path).unwrap(), b"one");
        assert_eq!(files.read(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "two").unwrap();
        fs::write(&missing, "two").unwrap();
        assert_eq!(&*files.read(&path).unwrap(), b"one");
        assert!(files.read(&missing).unwrap_err().to_string().contains("No such file"));
        assert_eq!(&*Files::default().read(&path).unwrap(), b"two");
    }
}
