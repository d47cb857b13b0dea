//! Pages of a primary that are damaged.

use super::lab::Lab;
use kaa_engine::postgres::{Data, Error};
use std::io::{Read, Seek, SeekFrom, Write};

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_does_not_take_over_damaged_pages_and_says_where_they_are() {
    let Some(lab) = Lab::new() else { return };
    let (mut a, _) = lab.primary(1).await;
    let client = a.superuser().await;
    client.batch_execute("INSERT INTO rows SELECT id, 0 FROM generate_series(1, 1000) AS id").await.unwrap();
    let path: String = client.query_one("SELECT pg_relation_filepath('rows')", &[]).await.unwrap().get(0);
    a.server.checkpoint().await.unwrap();
    // In the middle of the second page. The server still has the page as it was.
    let mut file =
        std::fs::File::options().read(true).write(true).open(a.settings.directory.join("pgdata").join(&path)).unwrap();
    let (at, mut byte) = (SeekFrom::Start(8192 + 4096), [0]);
    file.seek(at).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(at).unwrap();
    file.write_all(&[!byte[0]]).unwrap();
    let mut b = lab.member(2);
    match b.server.overwrite(&a.source(), false).await {
        Err(error @ Error::DamagedSource { .. }) => {
            let said = error.to_string();
            assert!(said.contains("the data of localhost has damaged pages") && said.contains(&path), "{said}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(b.server.inspect().unwrap(), Data::Empty, "nothing was taken over");
}
