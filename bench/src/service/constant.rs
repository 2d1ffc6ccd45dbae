//! A server that reads commands and answers each with the same five integers: the cost of connections alone,
//! and so the minimum for any server of this kind.

use std::{env, io};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime,
};

use super::processes::{Process, Running};

const SERVE: &str = "serve-constant";
const ANSWER: &[u8] = b"*5\r\n:1\r\n:100\r\n:99\r\n:1\r\n:0\r\n";

/// Returns true if this process should be that server.
pub fn asked_to_serve() -> bool {
    env::args().nth(1).is_some_and(|word| word == SERVE)
}

pub fn start() -> io::Result<(Running, Process)> {
    Running::this_program(&[SERVE])
}

/// Runs the server with one thread, like the others.
pub fn serve() -> io::Result<()> {
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        loop {
            let (connection, _) = listener.accept().await?;
            connection.set_nodelay(true)?;
            tokio::spawn(answer(connection));
        }
    })
}

async fn answer(mut connection: TcpStream) -> io::Result<()> {
    let (mut input, mut answers) = (vec![0; 16 * 1024], Vec::new());
    loop {
        let read = connection.read(&mut input).await?;
        if read == 0 {
            return Ok(());
        }
        answers.clear();
        // Each command begins with a star, and the requests here contain no other star.
        let commands = input[..read].iter().filter(|&&byte| byte == b'*').count();
        (0..commands).for_each(|_| answers.extend_from_slice(ANSWER));
        connection.write_all(&answers).await?;
    }
}
