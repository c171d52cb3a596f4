"""Skip-gram embeddings of made-up words, with negative samples that are fed, and nearest neighbours."""

import collections
import math

import numpy as np
import tensorflow as tf

rng = np.random.RandomState(17)
vocabulary_size, embedding_size, batch_size, num_sampled = 40, 8, 32, 6
topics = rng.randint(0, 4, 3000).repeat(5)
words = [int(topic * 10 + rng.randint(10)) for topic in topics]
counts = collections.Counter(words).most_common(vocabulary_size)
dictionary = {word: place for place, (word, _) in enumerate(counts)}
data = [dictionary[word] for word in words]


def generate_batch(at):
    context = [data[(at + i) % len(data)] for i in range(batch_size + 1)]
    return np.array(context[:-1], np.int32), np.array(context[1:], np.int32).reshape(-1, 1)


graph = tf.Graph()
with graph.as_default():
    train_inputs = tf.placeholder(tf.int32, shape=[batch_size])
    train_labels = tf.placeholder(tf.int32, shape=[batch_size, 1])
    sampled = tf.placeholder(tf.int32, shape=[num_sampled])
    valid_dataset = tf.constant([0, 1, 2, 3], dtype=tf.int32)
    with tf.device("/cpu:0"):
        embeddings = tf.Variable(tf.random_uniform([vocabulary_size, embedding_size], -1.0, 1.0))
        embed = tf.nn.embedding_lookup(embeddings, train_inputs)
        nce_weights = tf.Variable(
            tf.truncated_normal([vocabulary_size, embedding_size], stddev=1.0 / math.sqrt(embedding_size))
        )
        nce_biases = tf.Variable(tf.zeros([vocabulary_size]))
    true = tf.reshape(train_labels, [-1])
    true_logits = tf.reduce_sum(embed * tf.gather(nce_weights, true), 1) + tf.gather(nce_biases, true)
    sampled_logits = tf.matmul(embed, tf.gather(nce_weights, sampled), transpose_b=True) + tf.gather(
        nce_biases, sampled
    )
    loss = tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.ones_like(true_logits), logits=true_logits)
    ) + tf.reduce_mean(
        tf.reduce_sum(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.zeros_like(sampled_logits), logits=sampled_logits), 1
        )
    )
    optimizer = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keep_dims=True))
    normalized_embeddings = embeddings / norm
    valid_embeddings = tf.nn.embedding_lookup(normalized_embeddings, valid_dataset)
    similarity = tf.matmul(valid_embeddings, normalized_embeddings, transpose_b=True)
    init = tf.global_variables_initializer()

with tf.Session(graph=graph) as session:
    init.run()
    average_loss = 0
    for step in range(200):
        inputs, labels = generate_batch(step * batch_size)
        feed_dict = {train_inputs: inputs, train_labels: labels, sampled: rng.randint(0, vocabulary_size, num_sampled)}
        _, loss_val = session.run([optimizer, loss], feed_dict=feed_dict)
        average_loss += loss_val
        if step % 50 == 49:
            print("Average loss at step ", step, ": ", average_loss / 50)
            average_loss = 0
    sim = similarity.eval()
    for i in range(4):
        print(i, (-sim[i, :]).argsort()[1:4])
    final_embeddings = normalized_embeddings.eval()
    print(final_embeddings.shape)
