//! Keys in files, one each, in one folder. The format is that of all clients of the contract.
//!
//! **Invariant:** a file has its name only when its content is durable, no file is ever replaced, and only the key that is named is
//! forgotten.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Keep;
use crate::key::Key;

/// A file for each key, in one folder. Threads and processes, also in other languages, may share it.
///
/// It reads and writes on the runtime's threads for what blocks.
#[derive(Clone, Debug)]
pub struct FileKeep {
    folder: PathBuf,
}

impl FileKeep {
    /// In this folder, which is made when it is needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Does it where waiting for a disk holds nobody up. It goes on if nobody waits for it any more.
    async fn apart<T: Send + 'static>(
        &self,
        name: &str,
        act: impl FnOnce(&Place) -> Result<T, FileKeepError> + Send + 'static,
    ) -> Result<T, FileKeepError> {
        let place = Place::new(&self.folder, name);
        let path = place.path.clone();
        let done = tokio::task::spawn_blocking(move || act(&place)).await;
        done.unwrap_or_else(|error| Err(FileKeepError::Io { path, source: io::Error::other(error) }))
    }
}

impl Keep for FileKeep {
    type Error = FileKeepError;

    async fn load(&self, name: &str) -> Result<Option<Key>, FileKeepError> {
        self.apart(name, Place::load_durably).await
    }

    async fn save(&self, name: &str, key: &Key) -> Result<Key, FileKeepError> {
        let key = key.clone();
        self.apart(name, move |place| place.save(&key)).await
    }

    async fn forget(&self, name: &str, key: &Key) -> Result<(), FileKeepError> {
        let key = key.clone();
        self.apart(name, move |place| place.forget(&key)).await
    }
}

/// What a file holds, as one line of JSON.
#[derive(Serialize, Deserialize)]
struct Kept<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
}

/// Where one key is kept.
struct Place {
    folder: PathBuf,
    name: String,
    path: PathBuf,
}

impl Place {
    fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!("{:x}.json", Bytes::copy_from_slice(&Sha256::digest(name))));
        Self { folder: folder.to_owned(), name: name.to_owned(), path }
    }

    fn load(&self) -> Result<Option<Key>, FileKeepError> {
        self.read(&self.path)
    }

    /// Who linked it may have been killed before its name was durable. Sent before that, and lost with the machine's power, it would be followed by
    /// a new key.
    fn load_durably(&self) -> Result<Option<Key>, FileKeepError> {
        let key = self.load()?;
        if key.is_some() {
            sync(&self.folder).map_err(|error| self.io(error))?;
        }
        Ok(key)
    }

    fn read(&self, path: &Path) -> Result<Option<Key>, FileKeepError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io(error)),
        };
        let kept: Option<Kept<'_>> = serde_json::from_slice(&text).ok();
        let key = kept.filter(|kept| kept.name == self.name).and_then(|kept| kept.key.parse().ok());
        match key {
            Some(key) => Ok(Some(key)),
            None => Err(FileKeepError::Damaged { path: path.to_owned(), name: self.name.clone() }),
        }
    }

    fn save(&self, key: &Key) -> Result<Key, FileKeepError> {
        make_folder(&self.folder).map_err(|error| self.io(error))?;
        let is_first = self.link(key).map_err(|error| self.io(error))?;
        if is_first {
            return Ok(key.clone());
        }
        // Forgotten in between: somebody has just finished this operation.
        self.load_durably()?.ok_or_else(|| FileKeepError::Settled { name: self.name.clone() })
    }

    fn forget(&self, key: &Key) -> Result<(), FileKeepError> {
        match self.load()? {
            Some(kept) if kept == *key => self.remove(key),
            _ => Ok(()),
        }
    }

    /// Nothing removes a file only if it holds this key: so it is taken aside first, and looked at again.
    fn remove(&self, key: &Key) -> Result<(), FileKeepError> {
        let aside = self.beside().map_err(|error| self.io(error))?;
        match fs::rename(&self.path, &aside) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.io(error)),
        }
        if self.read(&aside)?.as_ref() != Some(key) {
            // Forgotten and begun anew in between: put back, by a link, which replaces nobody's.
            fs::hard_link(&aside, &self.path).map_err(|error| self.io(error))?;
        }
        fs::remove_file(&aside).and_then(|()| sync(&self.folder)).map_err(|error| self.io(error))
    }

    /// Writes the file; false if there is one.
    fn link(&self, key: &Key) -> io::Result<bool> {
        let draft = self.draft(key)?;
        // A rename would replace the key of whoever was first; a link cannot.
        let linked = fs::hard_link(&draft, &self.path);
        fs::remove_file(&draft)?;
        let is_first = match linked {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        if is_first {
            sync(&self.folder)?;
        }
        Ok(is_first)
    }

    /// A name in the same folder that nobody looks at.
    fn beside(&self) -> io::Result<PathBuf> {
        let mut bits = [0; 8];
        getrandom::fill(&mut bits).map_err(io::Error::other)?;
        Ok(self.path.with_extension(format!("json.{:016x}", u64::from_be_bytes(bits))))
    }

    /// The whole content, durable, under such a name.
    fn draft(&self, key: &Key) -> io::Result<PathBuf> {
        let draft = self.beside()?;
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let kept = Kept { name: Cow::Borrowed(&self.name), key: Cow::Borrowed(key.as_str()) };
        let line = serde_json::to_string(&kept)? + "\n";
        let mut file = options.open(&draft)?;
        file.write_all(line.as_bytes())?;
        file.sync_all()?;
        Ok(draft)
    }

    fn io(&self, source: io::Error) -> FileKeepError {
        FileKeepError::Io { path: self.path.clone(), source }
    }
}

/// Makes a folder and those above it, durably.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().unwrap_or(Path::new(""));
    make_folder(above)?;
    match fs::create_dir(folder) {
        Ok(()) => sync(above),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => sync(above),
        Err(error) => Err(error),
    }
}

/// A file's name is durable when its folder is.
fn sync(folder: &Path) -> io::Result<()> {
    // Windows has no such thing, and no need of it.
    if cfg!(windows) {
        return Ok(());
    }
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(folder.to_owned()));
    File::open(folder)?.sync_all()
}

/// Why a key could not be kept, read or forgotten in its file.
#[derive(Debug)]
pub enum FileKeepError {
    /// There is a file, and it does not hold this name's key.
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Whose key it should hold.
        name: String,
    },
    /// Another process has finished this operation, and forgotten its key, while this one began it.
    Settled {
        /// Which operation.
        name: String,
    },
    /// The system says why.
    Io {
        /// Which file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
}

impl fmt::Display for FileKeepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { path, name } => write!(
                f,
                "{} should hold the key of {name:?} and cannot be read as such; restore it, or remove it once you have looked up \
                 what became of the operation",
                path.display()
            ),
            Self::Settled { name } => write!(f, "{name:?} was settled by another process meanwhile"),
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl Error for FileKeepError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Damaged { .. } | Self::Settled { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// The folders that this thread has synced.
        pub(super) static SYNCED: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    }

    /// A process linked its key, and was killed before it had synced the folder. The next one found the key, and sent it; then the power went, and the
    /// name with it, and the third made a new key for an operation that had happened.
    #[test]
    fn a_key_that_is_found_is_durable_before_it_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), "a");
        let [first, second]: [Key; 2] = ["first", "second"].map(|key| key.parse().unwrap());
        // As a process leaves it that is killed there.
        fs::hard_link(place.draft(&first).unwrap(), &place.path).unwrap();
        let synced = || SYNCED.with_borrow_mut(std::mem::take);
        assert_eq!(synced(), [] as [PathBuf; 0]);
        assert_eq!(place.load_durably().unwrap().as_ref(), Some(&first));
        assert_eq!(synced(), [folder.path()]);
        // Nor by one who finds it when it would save another.
        assert_eq!(place.save(&second).unwrap(), first);
        assert_eq!(synced(), [folder.path()]);
    }

    /// The moment between the look and the removal, in which another process forgets the key and begins anew.
    #[test]
    fn a_key_that_is_begun_anew_while_the_old_one_is_forgotten_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), "a");
        let [old, new]: [Key; 2] = ["old", "new"].map(|key| key.parse().unwrap());
        place.save(&old).unwrap();
        assert_eq!(place.load().unwrap().as_ref(), Some(&old));
        place.forget(&old).unwrap();
        place.save(&new).unwrap();
        place.remove(&old).unwrap();
        assert_eq!(place.load().unwrap(), Some(new));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left aside");
    }
}
