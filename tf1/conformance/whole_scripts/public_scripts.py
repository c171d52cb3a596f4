"""Which public scripts are played: their projects, their paths, and the data that they look for."""

from __future__ import annotations

from typing import NamedTuple

from tf1.conformance.whole_scripts.public_data import (
    Put,
    births,
    cifar10_in,
    digits_csv,
    gym_beside,
    mnist_in,
    ratings_in,
    words_in,
)


class Public(NamedTuple):
    """A script.

    Attributes:
        project: Its project, `OWNER/NAME`.
        path: Its path there.
        arguments: What is said on its command line.
        data: Puts into its folder the data that it looks for.
        peer: The environment variable that names the interpreter of TensorFlow: `tf.contrib` needs an older one.
        secs: How long it may take.
    """

    project: str
    path: str
    arguments: tuple[str, ...] = ()
    data: Put | None = None
    peer: str = "TF_PYTHON"
    secs: float = 300


_REINFORCED = "MorvanZhou/Reinforcement-learning-with-tensorflow"
_LAZY = "lazyprogrammer/machine_learning_examples"
_STANFORD = "chiphuyen/stanford-tensorflow-tutorials"
_ratings = ratings_in("../Data/ml100k/movielens_100k.dat", 300, 400, 20_000)

SCRIPTS = [
    Public("AYLIEN/gan-intro", "gan.py", ("--log-every=1",)),
    Public("BinRoot/TensorFlow-Book", "ch04_classification/logistic_1d.py"),
    Public("BinRoot/TensorFlow-Book", "ch04_classification/logistic_2d.py"),
    Public("BinRoot/TensorFlow-Book", "ch07_autoencoder/main.py"),
    Public("ChenglongChen/tensorflow-DeepFM", "example/main.py", peer="TF115_PYTHON"),
    Public(_REINFORCED, "contents/12_Proximal_Policy_Optimization/simply_PPO.py", data=gym_beside,
           peer="TF115_PYTHON"),
    Public(_REINFORCED, "contents/6_OpenAI_gym/run_CartPole.py", data=gym_beside),
    Public(_REINFORCED, "contents/8_Actor_Critic_Advantage/AC_CartPole.py", data=gym_beside),
    Public(_REINFORCED, "contents/8_Actor_Critic_Advantage/AC_continue_Pendulum.py", data=gym_beside,
           peer="TF115_PYTHON"),
    Public(_REINFORCED, "contents/9_Deep_Deterministic_Policy_Gradient_DDPG/DDPG.py", data=gym_beside),
    Public("MorvanZhou/Tensorflow-Tutorial", "tutorial-contents/301_simple_regression.py"),
    Public("MorvanZhou/Tensorflow-Tutorial", "tutorial-contents/302_simple_classification.py"),
    Public("MorvanZhou/Tensorflow-Tutorial", "tutorial-contents/401_CNN.py"),
    Public("MorvanZhou/Tensorflow-Tutorial", "tutorial-contents/406_GAN.py"),
    Public("MorvanZhou/Tensorflow-Tutorial", "tutorial-contents/502_batch_normalization.py"),
    Public("MorvanZhou/tutorials", "tensorflowTUT/tf15_tensorboard/full_code.py"),
    Public("MorvanZhou/tutorials", "tensorflowTUT/tf17_dropout/full_code.py"),
    Public("MorvanZhou/tutorials", "tensorflowTUT/tf18_CNN3/full_code.py"),
    Public("MorvanZhou/tutorials", "tensorflowTUT/tf23_BN/tf23_BN.py"),
    Public("adventuresinML/adventures-in-ml-code", "convolutional_neural_network_tutorial.py"),
    Public("adventuresinML/adventures-in-ml-code", "tf_dataset_tutorial.py"),
    Public("adventuresinML/adventures-in-ml-code", "vanishing_gradient.py"),
    Public("aymericdamien/TensorFlow-Examples", "tensorflow_v1/examples/2_BasicModels/logistic_regression.py"),
    Public("aymericdamien/TensorFlow-Examples", "tensorflow_v1/examples/3_NeuralNetworks/gan.py"),
    Public("aymericdamien/TensorFlow-Examples", "tensorflow_v1/examples/3_NeuralNetworks/dcgan.py"),
    Public("aymericdamien/TensorFlow-Examples", "tensorflow_v1/examples/3_NeuralNetworks/variational_autoencoder.py"),
    Public("aymericdamien/TensorFlow-Examples", "tensorflow_v1/examples/4_Utils/tensorboard_advanced.py"),
    Public("decentralion/tf-dev-summit-tensorboard-tutorial", "mnist.py", peer="TF115_PYTHON"),
    Public("dennybritz/cnn-text-classification-tf", "train.py", peer="TF115_PYTHON"),
    Public("easy-tensorflow/easy-tensorflow", "2_Linear_Classifier/code/main.py"),
    Public("easy-tensorflow/easy-tensorflow", "4_Tensorboard/code/main.py"),
    Public("easy-tensorflow/easy-tensorflow", "6_Convolutional_Neural_Network/code/main.py"),
    Public("exelban/tensorflow-cifar-10", "train.py", data=cifar10_in("data_set/cifar_10")),
    Public("golbin/TensorFlow-Tutorials", "08 - Autoencoder/01 - Autoencoder.py"),
    Public("golbin/TensorFlow-Tutorials", "09 - GAN/02 - GAN2.py"),
    Public("hunkim/DeepLearningZeroToAll", "lab-06-2-softmax_zoo_classifier.py"),
    Public("hunkim/DeepLearningZeroToAll", "lab-09-4-xor_tensorboard.py"),
    Public("hunkim/DeepLearningZeroToAll", "lab-10-5-mnist_nn_dropout.py", peer="TF115_PYTHON"),
    Public("hunkim/DeepLearningZeroToAll", "lab-11-5-mnist_cnn_ensemble_layers.py"),
    Public("hwalsuklee/tensorflow-generative-model-collections", "main.py", ("--gan_type=GAN",),
           mnist_in("data/mnist"), "TF115_PYTHON"),
    Public("hwalsuklee/tensorflow-generative-model-collections", "main.py", ("--gan_type=VAE",),
           mnist_in("data/mnist"), "TF115_PYTHON"),
    Public("jostmey/NakedTensor", "serial.py"),
    Public("jostmey/NakedTensor", "bigdata.py"),
    Public("llSourcell/tensorflow_demo", "board.py", data=mnist_in("data")),
    Public("nfmcclure/tensorflow_cookbook",
           "03_Linear_Regression/03_TensorFlow_Way_of_Linear_Regression/03_lin_reg_tensorflow_way.py"),
    Public("nfmcclure/tensorflow_cookbook",
           "04_Support_Vector_Machines/04_Working_with_Kernels/04_svm_kernels.py"),
    Public("nfmcclure/tensorflow_cookbook",
           "08_Convolutional_Neural_Networks/02_Intro_to_CNN_MNIST/02_introductory_cnn.py"),
    Public("nlintz/TensorFlow-Tutorials", "04_modern_net.py"),
    Public("nlintz/TensorFlow-Tutorials", "05_convolutional_net.py"),
    Public("nlintz/TensorFlow-Tutorials", "06_autoencoder.py"),
    Public("nlintz/TensorFlow-Tutorials", "10_save_restore_net.py"),
    Public("pkmital/tensorflow_tutorials", "python/05_basic_convnet.py"),
    Public("pkmital/tensorflow_tutorials", "python/09_convolutional_autoencoder.py"),
    Public("pkmital/tensorflow_tutorials", "python/11_variational_autoencoder.py", secs=900),
    Public("princewen/tensorflow_practice", "CV/CNN.py"),
    Public("princewen/tensorflow_practice", "GAN/GAN.py"),
    Public("sugyan/tensorflow-mnist", "mnist/regression.py"),
    Public("sugyan/tensorflow-mnist", "mnist/convolutional.py"),
    Public("wiseodd/generative-models", "GAN/vanilla_gan/gan_tensorflow.py"),
    Public("wiseodd/generative-models", "GAN/auxiliary_classifier_gan/ac_gan_tensorflow.py"),
    Public("wiseodd/generative-models", "GAN/conditional_gan/cgan_tensorflow.py"),
    Public("wiseodd/generative-models", "GAN/improved_wasserstein_gan/wgan_gp_tensorflow.py"),
    Public("wiseodd/generative-models", "GAN/infogan/infogan_tensorflow.py"),
    Public("wiseodd/generative-models", "GAN/wasserstein_gan/wgan_tensorflow.py"),
    Public("wiseodd/generative-models", "VAE/adversarial_autoencoder/aae_tensorflow.py"),
    Public("wiseodd/generative-models", "VAE/vanilla_vae/vae_tensorflow.py"),
    Public("wolfib/image-classification-CIFAR10-tf", "run_fc_model.py", data=cifar10_in("cifar-10-batches-py")),
    Public("y0ast/VAE-TensorFlow", "main.py"),
    Public("zhangqianhui/Conditional-GAN", "main.py", data=mnist_in("data/mnist", packed=False), peer="TF115_PYTHON"),
    Public("MadryLab/mnist_challenge", "train.py", peer="TF115_PYTHON"),
    Public("aymericdamien/TensorFlow-Examples", "tensorflow_v1/examples/2_BasicModels/word2vec.py",
           data=words_in("text8.zip")),
    Public("aymericdamien/TensorFlow-Examples",
           "tensorflow_v1/examples/5_DataManagement/tensorflow_dataset_api.py", peer="TF115_PYTHON"),
    Public("caicloud/tensorflow-tutorial",
           "Deep_Learning_with_TensorFlow/1.4.0/Chapter05/5. MNIST最佳实践/mnist_train.py", peer="TF115_PYTHON"),
    Public("cheungdaven/DeepRec", "test/test_rating_pred.py", ("--model=MF",), _ratings),
    Public("cheungdaven/DeepRec", "test/test_rating_pred.py", ("--model=NNMF",), _ratings, "TF115_PYTHON"),
    Public("cheungdaven/DeepRec", "test/test_rating_pred.py", ("--model=NRR",), _ratings, "TF115_PYTHON"),
    Public(_STANFORD, "examples/03_linreg_dataset.py", data=births),
    Public(_STANFORD, "examples/03_logreg.py", data=mnist_in("data/mnist", packed=False)),
    Public(_STANFORD, "examples/04_word2vec_visualize.py", data=words_in("data/text8.zip")),
    Public(_STANFORD, "examples/07_convnet_layers.py", data=mnist_in("data/mnist", packed=False)),
    Public(_LAZY, "ann_class2/batch_norm_tf.py", data=digits_csv),
    Public(_LAZY, "ann_class2/dropout_tensorflow.py", data=digits_csv),
    Public(_LAZY, "unsupervised_class2/autoencoder_tf.py", data=digits_csv),
    Public(_LAZY, "unsupervised_class2/rbm_tf.py", data=digits_csv),
    Public(_LAZY, "unsupervised_class3/vae_tf.py", data=digits_csv, peer="TF115_PYTHON"),
    Public("sjwhhhi/tensorflow", "LeNet5/Lenet5.py"),
]  # fmt: skip
