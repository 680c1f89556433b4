//! A child that does not outlive its parent, however that one ends.

use tokio::io::AsyncReadExt;

/// On Linux the kernel kills this process when its parent dies, even while it is stopped. Everywhere, the end of
/// standard input, a pipe whose other end the parent holds, ends it at once: to be called first, and only by a
/// process that was started with such a pipe.
pub(crate) fn exit_with_parent() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)) {
        tracing::warn!(%error, "the kernel will not tell when the parent dies; standard input does");
    }
    tokio::spawn(async {
        let mut stdin = tokio::io::stdin();
        let mut buffer = [0; 64];
        while stdin.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {}
        tracing::info!("standard input was closed: the parent is gone");
        std::process::exit(1);
    });
}
