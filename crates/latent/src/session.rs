//! Saved sessions: the tokens and KV cache rows of an answer as bytes.
//!
//! ```text
//! magic "LATNTSN1" | length of the head u32 | head: JSON {"tokens": [...], "messages": [...] or null} | a saved sequence, if rows were cached
//! ```

use crate::answer::GeneratedAnswer;
use crate::conversation::Chat;
use crate::error::{Error, ErrorKind};
use crate::model::Model;
use crate::request::Prompt;
use latent_engine::cache::CacheSalt;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"LATNTSN1";

/// The tokens of an answer and its prompt, and their rows that are still in the KV cache.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedSession {
    tokens: Vec<u32>,
    chat: Option<Chat>,
    rows: Vec<u8>,
}

impl SavedSession {
    /// The tokens of the prompt and of the answer.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The conversation with the answer as its last message. `None` for an answer to a text.
    pub fn chat(&self) -> Option<&Chat> {
        self.chat.as_ref()
    }

    /// The bytes for [`Model::resume`].
    ///
    /// # Errors
    /// If the messages exceed 4 GiB.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let messages = self.chat.as_ref().map(Chat::messages);
        // Tools and other variables of the template are not saved: the caller sets them again.
        let head = json!({"tokens": self.tokens, "messages": messages}).to_string();
        let length = u32::try_from(head.len())
            .map_err(|_| Error::argument(format!("the session's messages have {} bytes", head.len())))?;
        Ok([&MAGIC[..], &length.to_le_bytes(), head.as_bytes(), &self.rows].concat())
    }

    fn read(bytes: &[u8]) -> Result<SavedSession, Error> {
        let damaged = |problem: &str| {
            Error::new(ErrorKind::File, format!("not a saved session of Latent: {problem}; save it again"))
        };
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it must begin with LATNTSN1"))?;
        let early = || damaged("it is truncated");
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(early)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| early())?;
        let (head, rows) = rest.split_at_checked(length).ok_or_else(early)?;
        let head = std::str::from_utf8(head).map_err(|_| damaged("its head is not UTF-8"))?;
        // This parser bounds the depth and the number of values, since the file may be hostile.
        let mut head =
            latent_formats::json::parse(head).map_err(|error| damaged(&format!("its head: {error}")))?;
        // Not `head["…"]`: a hostile head is a number or a list, of which an index panics.
        let mut field = |name| head.get_mut(name).map(Value::take).unwrap_or_default();
        let tokens = serde_json::from_value(field("tokens"))
            .map_err(|_| damaged("its head has no list of token ids"))?;
        let chat = match field("messages") {
            Value::Null => None,
            messages => Some(Chat::from_json(messages)?),
        };
        Ok(SavedSession { tokens, chat, rows: rows.to_owned() })
    }
}

impl From<&SavedSession> for Prompt {
    fn from(session: &SavedSession) -> Prompt {
        Prompt::Tokens(session.tokens.clone())
    }
}

impl Model {
    /// Saves the rows of an answer and its prompt that are in the KV cache. Evicted rows are
    /// omitted, and computed again after [`resume`](Self::resume).
    ///
    /// ```
    /// use latent::{Chat, Model};
    /// # let model = Model::demo().context(512).load()?;
    /// let done = model.chat(Chat::new().user("Tell me a story.")).max_tokens(100).finish()?;
    /// let saved = model.session(&done)?.to_bytes()?;
    ///
    /// let session = model.resume(&saved)?; // in another process, with the same model and options
    /// let chat = session.chat().unwrap().clone().user("And then?");
    /// let next = model.chat(chat).max_tokens(8).finish()?;
    /// assert!(next.usage.cached > 0);
    /// # Ok::<(), latent::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the engine has failed, or the device fails to read its memory.
    pub fn session(&self, answer: &GeneratedAnswer) -> Result<SavedSession, Error> {
        let tokens = [&answer.prompt[..], &answer.tokens].concat();
        let (wanted, salt) = (tokens.clone(), answer.salt);
        let rows = self.with_scheduler(move |scheduler| Ok(scheduler.prefix_to_bytes(salt, &wanted)?))?;
        Ok(SavedSession { tokens, chat: answer.chat(), rows })
    }

    /// Restores a saved session, so that later prompts that begin with its tokens find its rows in
    /// the KV cache. Restore trusted sessions only: rows cannot be checked against their tokens.
    ///
    /// # Errors
    /// If the bytes are not a session, or belong to another model, cache type or precision, or the
    /// session does not fit into the KV cache.
    pub fn resume(&self, bytes: &[u8]) -> Result<SavedSession, Error> {
        self.resume_with(bytes, CacheSalt::default())
    }

    /// [`resume`](Self::resume) for a session of an [owner](crate::AnswerRequest::cache_owner) of
    /// cached prefixes.
    ///
    /// # Errors
    /// As for [`resume`](Self::resume), and if the session belongs to another owner.
    pub fn resume_for(&self, bytes: &[u8], owner: &[u8]) -> Result<SavedSession, Error> {
        self.resume_with(bytes, CacheSalt::of(owner))
    }

    /// Writes the rows of the beginning of some tokens that are in the KV cache to a file, with an
    /// attachment of up to 64 MiB, which [`restore_prompt_cache`](Self::restore_prompt_cache)
    /// returns. This is the format of `latent run --prompt-cache`. Returns the number of tokens in
    /// the file.
    ///
    /// # Errors
    /// If the file cannot be written, or the device fails to read its memory.
    pub fn save_prompt_cache(
        &self,
        tokens: &[u32],
        attachment: Option<&[u8]>,
        path: impl AsRef<Path>,
    ) -> Result<usize, Error> {
        let (tokens, attachment) = (tokens.to_vec(), attachment.map(<[u8]>::to_vec));
        let path: PathBuf = path.as_ref().to_owned();
        self.with_scheduler(move |scheduler| {
            Ok(scheduler.save_session(CacheSalt::default(), &tokens, attachment.as_deref(), &path)?)
        })
    }

    /// Reads a file of [`save_prompt_cache`](Self::save_prompt_cache), so that later prompts that
    /// begin with its tokens find its rows in the KV cache. Returns the tokens, and the attachment
    /// if the file has one. Restore trusted files only: rows cannot be checked against their
    /// tokens.
    ///
    /// ```
    /// # let model = latent::Model::demo().context(256).load()?;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("fox.kv");
    /// let done = model.complete("A fox and").max_tokens(100).finish()?;
    /// let tokens = [done.prompt, done.tokens].concat();
    /// let saved = model.save_prompt_cache(&tokens, Some(b"notes"), &path)?;
    ///
    /// let (restored, attachment) = model.restore_prompt_cache(&path)?; // in another process
    /// assert_eq!((&tokens[..saved], attachment.as_deref()), (&restored[..], Some(&b"notes"[..])));
    /// # Ok::<(), latent::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the file is damaged, belongs to another model or cache type, or does not fit into the KV
    /// cache.
    pub fn restore_prompt_cache(&self, path: impl AsRef<Path>) -> Result<(Vec<u32>, Option<Vec<u8>>), Error> {
        let path: PathBuf = path.as_ref().to_owned();
        self.with_scheduler(move |scheduler| Ok(scheduler.restore_session(CacheSalt::default(), &path)?))
    }

    fn resume_with(&self, bytes: &[u8], salt: CacheSalt) -> Result<SavedSession, Error> {
        let mut session = SavedSession::read(bytes)?;
        // All rows were evicted before the session was saved.
        if session.rows.is_empty() {
            return Ok(session);
        }
        // Moved to the model's thread and back, since rows may take gigabytes.
        let rows = std::mem::take(&mut session.rows);
        let (restored, rows) =
            self.with_scheduler(move |scheduler| Ok((scheduler.prefix_from_bytes(salt, &rows)?, rows)))?;
        session.rows = rows;
        // The head and the rows are separate parts of the bytes, so they may come from different
        // sessions.
        if !session.tokens.starts_with(&restored) {
            let problem = "not a saved session of Latent: its rows belong to other tokens; save it again";
            return Err(Error::new(ErrorKind::File, problem));
        }
        Ok(session)
    }
}
