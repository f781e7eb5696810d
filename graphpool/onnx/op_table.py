"""What ONNX's operators take. Written by tools/make_op_table.py from the package onnx: do not edit."""

NEWEST = {"": 28, "ai.onnx.ml": 5}
"""Domain -> the newest opset that the table knows."""

OPS = """
ai.onnx Abs 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx Acos 7:1-1:1-1: 22:1-1:1-1:
ai.onnx Acosh 9:1-1:1-1: 22:1-1:1-1:
ai.onnx Add 1:2-2:1-1:axis=i,broadcast=i,consumed_inputs=I 6:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1: 13:2-2:1-1: 14:2-2:1-1:
ai.onnx AffineGrid 20:2-2:1-1:align_corners=i
ai.onnx And 1:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1:
ai.onnx ArgMax 1:1-1:1-1:axis=i,keepdims=i 11:1-1:1-1:axis=i,keepdims=i 12:1-1:1-1:axis=i,keepdims=i,select_last_index=i 13:1-1:1-1:axis=i,keepdims=i,select_last_index=i
ai.onnx ArgMin 1:1-1:1-1:axis=i,keepdims=i 11:1-1:1-1:axis=i,keepdims=i 12:1-1:1-1:axis=i,keepdims=i,select_last_index=i 13:1-1:1-1:axis=i,keepdims=i,select_last_index=i
ai.onnx Asin 7:1-1:1-1: 22:1-1:1-1:
ai.onnx Asinh 9:1-1:1-1: 22:1-1:1-1:
ai.onnx Atan 7:1-1:1-1: 22:1-1:1-1:
ai.onnx Atanh 9:1-1:1-1: 22:1-1:1-1:
ai.onnx Attention 23:3-6:1-4:is_causal=i,kv_num_heads=i,q_num_heads=i,qk_matmul_output_mode=i,scale=f,softcap=f,softmax_precision=i 24:3-7:1-4:is_causal=i,kv_num_heads=i,q_num_heads=i,qk_matmul_output_mode=i,scale=f,softcap=f,softmax_precision=i 25:3-7:1-4:is_causal=i,kv_num_heads=i,left_window_size=i,q_num_heads=i,qk_matmul_output_mode=i,right_window_size=i,scale=f,softcap=f,softmax_precision=i
ai.onnx AveragePool 1:1-1:1-1:auto_pad=s,kernel_shape=I!,pads=I,strides=I 7:1-1:1-1:auto_pad=s,count_include_pad=i,kernel_shape=I!,pads=I,strides=I 10:1-1:1-1:auto_pad=s,ceil_mode=i,count_include_pad=i,kernel_shape=I!,pads=I,strides=I 11:1-1:1-1:auto_pad=s,ceil_mode=i,count_include_pad=i,kernel_shape=I!,pads=I,strides=I 19:1-1:1-1:auto_pad=s,ceil_mode=i,count_include_pad=i,dilations=I,kernel_shape=I!,pads=I,strides=I 22:1-1:1-1:auto_pad=s,ceil_mode=i,count_include_pad=i,dilations=I,kernel_shape=I!,pads=I,strides=I
ai.onnx BatchNormalization 1:5-5:1-5:consumed_inputs=I!,epsilon=f,is_test=i,momentum=f,spatial=i 6:5-5:1-5:epsilon=f,is_test=i,momentum=f,spatial=i 7:5-5:1-5:epsilon=f,momentum=f,spatial=i 9:5-5:1-5:epsilon=f,momentum=f 14:5-5:1-3:epsilon=f,momentum=f,training_mode=i 15:5-5:1-3:epsilon=f,momentum=f,training_mode=i
ai.onnx Bernoulli 15:1-1:1-1:dtype=i,seed=f 22:1-1:1-1:dtype=i,seed=f
ai.onnx BitCast 26:1-1:1-1:to=i!
ai.onnx BitShift 11:2-2:1-1:direction=s! 28:2-2:1-1:direction=s!
ai.onnx BitwiseAnd 18:2-2:1-1:
ai.onnx BitwiseNot 18:1-1:1-1:
ai.onnx BitwiseOr 18:2-2:1-1:
ai.onnx BitwiseXor 18:2-2:1-1:
ai.onnx BlackmanWindow 17:1-1:1-1:output_datatype=i,periodic=i
ai.onnx Cast 1:1-1:1-1:to=s! 6:1-1:1-1:to=i! 9:1-1:1-1:to=i! 13:1-1:1-1:to=i! 19:1-1:1-1:saturate=i,to=i! 21:1-1:1-1:saturate=i,to=i! 23:1-1:1-1:saturate=i,to=i! 24:1-1:1-1:round_mode=s,saturate=i,to=i! 25:1-1:1-1:round_mode=s,saturate=i,to=i! 28:1-1:1-1:round_mode=s,saturate=i,to=i!
ai.onnx CastLike 15:2-2:1-1: 19:2-2:1-1:saturate=i 21:2-2:1-1:saturate=i 23:2-2:1-1:saturate=i 24:2-2:1-1:round_mode=s,saturate=i 25:2-2:1-1:round_mode=s,saturate=i
ai.onnx CausalConvWithState 27:2-4:2-2:activation=s
ai.onnx Ceil 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx Celu 12:1-1:1-1:alpha=f 28:1-1:1-1:alpha=f
ai.onnx CenterCropPad 18:2-2:1-1:axes=I
ai.onnx Clip 1:1-1:1-1:consumed_inputs=I,max=f,min=f 6:1-1:1-1:max=f,min=f 11:1-3:1-1: 12:1-3:1-1: 13:1-3:1-1:
ai.onnx Col2Im 18:3-3:1-1:dilations=I,pads=I,strides=I
ai.onnx Compress 9:2-2:1-1:axis=i 11:2-2:1-1:axis=i 28:2-2:1-1:axis=i
ai.onnx Concat 1:1-:1-1:axis=i 4:1-:1-1:axis=i! 11:1-:1-1:axis=i! 13:1-:1-1:axis=i!
ai.onnx ConcatFromSequence 11:1-1:1-1:axis=i!,new_axis=i
ai.onnx Constant 1:0-0:1-1:value=t! 9:0-0:1-1:value=t! 11:0-0:1-1:sparse_value=x,value=t 12:0-0:1-1:sparse_value=x,value=t,value_float=f,value_floats=F,value_int=i,value_ints=I,value_string=s,value_strings=S 13:0-0:1-1:sparse_value=x,value=t,value_float=f,value_floats=F,value_int=i,value_ints=I,value_string=s,value_strings=S 19:0-0:1-1:sparse_value=x,value=t,value_float=f,value_floats=F,value_int=i,value_ints=I,value_string=s,value_strings=S 21:0-0:1-1:sparse_value=x,value=t,value_float=f,value_floats=F,value_int=i,value_ints=I,value_string=s,value_strings=S 23:0-0:1-1:sparse_value=x,value=t,value_float=f,value_floats=F,value_int=i,value_ints=I,value_string=s,value_strings=S 24:0-0:1-1:sparse_value=x,value=t,value_float=f,value_floats=F,value_int=i,value_ints=I,value_string=s,value_strings=S 25:0-0:1-1:sparse_value=x,value=t,value_float=f,value_floats=F,value_int=i,value_ints=I,value_string=s,value_strings=S
ai.onnx ConstantOfShape 9:1-1:1-1:value=t 20:1-1:1-1:value=t 21:1-1:1-1:value=t 23:1-1:1-1:value=t 24:1-1:1-1:value=t 25:1-1:1-1:value=t
ai.onnx Conv 1:2-3:1-1:auto_pad=s,dilations=I,group=i,kernel_shape=I,pads=I,strides=I 11:2-3:1-1:auto_pad=s,dilations=I,group=i,kernel_shape=I,pads=I,strides=I 22:2-3:1-1:auto_pad=s,dilations=I,group=i,kernel_shape=I,pads=I,strides=I
ai.onnx ConvInteger 10:2-4:1-1:auto_pad=s,dilations=I,group=i,kernel_shape=I,pads=I,strides=I
ai.onnx ConvTranspose 1:2-3:1-1:auto_pad=s,dilations=I,group=i,kernel_shape=I,output_padding=I,output_shape=I,pads=I,strides=I 11:2-3:1-1:auto_pad=s,dilations=I,group=i,kernel_shape=I,output_padding=I,output_shape=I,pads=I,strides=I 22:2-3:1-1:auto_pad=s,dilations=I,group=i,kernel_shape=I,output_padding=I,output_shape=I,pads=I,strides=I
ai.onnx Cos 7:1-1:1-1: 22:1-1:1-1:
ai.onnx Cosh 9:1-1:1-1: 22:1-1:1-1:
ai.onnx CumProd 26:2-2:1-1:exclusive=i,reverse=i
ai.onnx CumSum 11:2-2:1-1:exclusive=i,reverse=i 14:2-2:1-1:exclusive=i,reverse=i
ai.onnx DFT 17:1-2:1-1:axis=i,inverse=i,onesided=i 20:1-3:1-1:inverse=i,onesided=i
ai.onnx DeformConv 19:3-5:1-1:dilations=I,group=i,kernel_shape=I,offset_group=i,pads=I,strides=I 22:3-5:1-1:dilations=I,group=i,kernel_shape=I,offset_group=i,pads=I,strides=I
ai.onnx DepthToSpace 1:1-1:1-1:blocksize=i! 11:1-1:1-1:blocksize=i!,mode=s 13:1-1:1-1:blocksize=i!,mode=s 28:1-1:1-1:blocksize=i!,mode=s
ai.onnx DequantizeLinear 10:2-3:1-1: 13:2-3:1-1:axis=i 19:2-3:1-1:axis=i 21:2-3:1-1:axis=i,block_size=i 23:2-3:1-1:axis=i,block_size=i,output_dtype=i 24:2-3:1-1:axis=i,block_size=i,output_dtype=i 25:2-3:1-1:axis=i,block_size=i,output_dtype=i 28:2-3:1-1:axis=i,block_size=i,output_dtype=i
ai.onnx Det 11:1-1:1-1: 22:1-1:1-1:
ai.onnx Div 1:2-2:1-1:axis=i,broadcast=i,consumed_inputs=I 6:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1: 13:2-2:1-1: 14:2-2:1-1:
ai.onnx Dropout 1:1-1:1-2:consumed_inputs=I,is_test=i,ratio=f 6:1-1:1-2:is_test=i,ratio=f 7:1-1:1-2:ratio=f 10:1-1:1-2:ratio=f 12:1-3:1-2:seed=i 13:1-3:1-2:seed=i 22:1-3:1-2:seed=i
ai.onnx DynamicQuantizeLinear 11:1-1:3-3:
ai.onnx Einsum 12:1-:1-1:equation=s! 28:1-:1-1:equation=s!
ai.onnx Elu 1:1-1:1-1:alpha=f,consumed_inputs=I 6:1-1:1-1:alpha=f 22:1-1:1-1:alpha=f
ai.onnx Equal 1:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1: 11:2-2:1-1: 13:2-2:1-1: 19:2-2:1-1:
ai.onnx Erf 9:1-1:1-1: 13:1-1:1-1:
ai.onnx Exp 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx Expand 8:2-2:1-1: 13:2-2:1-1:
ai.onnx EyeLike 9:1-1:1-1:dtype=i,k=i 22:1-1:1-1:dtype=i,k=i
ai.onnx Flatten 1:1-1:1-1:axis=i 9:1-1:1-1:axis=i 11:1-1:1-1:axis=i 13:1-1:1-1:axis=i 21:1-1:1-1:axis=i 23:1-1:1-1:axis=i 24:1-1:1-1:axis=i 25:1-1:1-1:axis=i
ai.onnx Floor 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx GRU 1:3-6:2-2:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,output_sequence=i 3:3-6:0-2:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,linear_before_reset=i,output_sequence=i 7:3-6:0-2:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,linear_before_reset=i 14:3-6:0-2:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,layout=i,linear_before_reset=i 22:3-6:0-2:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,layout=i,linear_before_reset=i
ai.onnx Gather 1:2-2:1-1:axis=i 11:2-2:1-1:axis=i 13:2-2:1-1:axis=i
ai.onnx GatherElements 11:2-2:1-1:axis=i 13:2-2:1-1:axis=i
ai.onnx GatherND 11:2-2:1-1: 12:2-2:1-1:batch_dims=i 13:2-2:1-1:batch_dims=i
ai.onnx Gelu 20:1-1:1-1:approximate=s
ai.onnx Gemm 1:3-3:1-1:alpha=f,beta=f,broadcast=i,transA=i,transB=i 6:3-3:1-1:alpha=f,beta=f,broadcast=i,transA=i,transB=i 7:3-3:1-1:alpha=f,beta=f,transA=i,transB=i 9:3-3:1-1:alpha=f,beta=f,transA=i,transB=i 11:2-3:1-1:alpha=f,beta=f,transA=i,transB=i 13:2-3:1-1:alpha=f,beta=f,transA=i,transB=i
ai.onnx GlobalAveragePool 1:1-1:1-1: 22:1-1:1-1:
ai.onnx GlobalLpPool 1:1-1:1-1:p=f 2:1-1:1-1:p=i 22:1-1:1-1:p=i
ai.onnx GlobalMaxPool 1:1-1:1-1: 22:1-1:1-1:
ai.onnx Greater 1:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1: 9:2-2:1-1: 13:2-2:1-1:
ai.onnx GreaterOrEqual 12:2-2:1-1: 16:2-2:1-1:
ai.onnx GridSample 16:2-2:1-1:align_corners=i,mode=s,padding_mode=s 20:2-2:1-1:align_corners=i,mode=s,padding_mode=s 22:2-2:1-1:align_corners=i,mode=s,padding_mode=s
ai.onnx GroupNormalization 18:- 21:3-3:1-1:epsilon=f,num_groups=i!,stash_type=i
ai.onnx HammingWindow 17:1-1:1-1:output_datatype=i,periodic=i
ai.onnx HannWindow 17:1-1:1-1:output_datatype=i,periodic=i
ai.onnx HardSigmoid 1:1-1:1-1:alpha=f,beta=f,consumed_inputs=I 6:1-1:1-1:alpha=f,beta=f 22:1-1:1-1:alpha=f,beta=f
ai.onnx HardSwish 14:1-1:1-1: 22:1-1:1-1:
ai.onnx Hardmax 1:1-1:1-1:axis=i 11:1-1:1-1:axis=i 13:1-1:1-1:axis=i
ai.onnx Identity 1:1-1:1-1: 13:1-1:1-1: 14:1-1:1-1: 16:1-1:1-1: 19:1-1:1-1: 21:1-1:1-1: 23:1-1:1-1: 24:1-1:1-1: 25:1-1:1-1:
ai.onnx If 1:1-1:1-:else_branch=g!,then_branch=g! 11:1-1:1-:else_branch=g!,then_branch=g! 13:1-1:1-:else_branch=g!,then_branch=g! 16:1-1:1-:else_branch=g!,then_branch=g! 19:1-1:1-:else_branch=g!,then_branch=g! 21:1-1:1-:else_branch=g!,then_branch=g! 23:1-1:1-:else_branch=g!,then_branch=g! 24:1-1:1-:else_branch=g!,then_branch=g! 25:1-1:1-:else_branch=g!,then_branch=g!
ai.onnx ImageDecoder 20:1-1:1-1:pixel_format=s
ai.onnx InstanceNormalization 1:3-3:1-1:consumed_inputs=I,epsilon=f 6:3-3:1-1:epsilon=f 22:3-3:1-1:epsilon=f
ai.onnx IsInf 10:1-1:1-1:detect_negative=i,detect_positive=i 20:1-1:1-1:detect_negative=i,detect_positive=i
ai.onnx IsNaN 9:1-1:1-1: 13:1-1:1-1: 20:1-1:1-1:
ai.onnx LRN 1:1-1:1-1:alpha=f,beta=f,bias=f,size=i! 13:1-1:1-1:alpha=f,beta=f,bias=f,size=i!
ai.onnx LSTM 1:3-8:0-3:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,input_forget=i,output_sequence=i 7:3-8:0-3:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,input_forget=i 14:3-8:0-3:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,input_forget=i,layout=i 22:3-8:0-3:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,input_forget=i,layout=i
ai.onnx LayerNormalization 17:2-3:1-3:axis=i,epsilon=f,stash_type=i
ai.onnx LeakyRelu 1:1-1:1-1:alpha=f,consumed_inputs=I 6:1-1:1-1:alpha=f 16:1-1:1-1:alpha=f
ai.onnx Less 1:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1: 9:2-2:1-1: 13:2-2:1-1:
ai.onnx LessOrEqual 12:2-2:1-1: 16:2-2:1-1:
ai.onnx LinearAttention 27:3-6:2-2:chunk_size=i,kv_num_heads=i!,q_num_heads=i!,scale=f,update_rule=s
ai.onnx Log 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx LogSoftmax 1:1-1:1-1:axis=i 11:1-1:1-1:axis=i 13:1-1:1-1:axis=i
ai.onnx Loop 1:3-:1-:body=g! 11:2?-:1-:body=g! 13:2?-:1-:body=g! 16:2?-:1-:body=g! 19:2?-:1-:body=g! 21:2?-:1-:body=g! 23:2?-:1-:body=g! 24:2?-:1-:body=g! 25:2?-:1-:body=g!
ai.onnx LpNormalization 1:1-1:1-1:axis=i,p=i 22:1-1:1-1:axis=i,p=i
ai.onnx LpPool 1:1-1:1-1:auto_pad=s,kernel_shape=I,p=f,pads=I,strides=I 2:1-1:1-1:auto_pad=s,kernel_shape=I!,p=i,pads=I,strides=I 11:1-1:1-1:auto_pad=s,kernel_shape=I!,p=i,pads=I,strides=I 18:1-1:1-1:auto_pad=s,ceil_mode=i,dilations=I,kernel_shape=I!,p=i,pads=I,strides=I 22:1-1:1-1:auto_pad=s,ceil_mode=i,dilations=I,kernel_shape=I!,p=i,pads=I,strides=I
ai.onnx MatMul 1:2-2:1-1: 9:2-2:1-1: 13:2-2:1-1:
ai.onnx MatMulInteger 10:2-4:1-1:
ai.onnx Max 1:1-:1-1:consumed_inputs=I 6:1-:1-1: 8:1-:1-1: 12:1-:1-1: 13:1-:1-1:
ai.onnx MaxPool 1:1-1:1-1:auto_pad=s,kernel_shape=I!,pads=I,strides=I 8:1-1:1-2:auto_pad=s,kernel_shape=I!,pads=I,storage_order=i,strides=I 10:1-1:1-2:auto_pad=s,ceil_mode=i,dilations=I,kernel_shape=I!,pads=I,storage_order=i,strides=I 11:1-1:1-2:auto_pad=s,ceil_mode=i,dilations=I,kernel_shape=I!,pads=I,storage_order=i,strides=I 12:1-1:1-2:auto_pad=s,ceil_mode=i,dilations=I,kernel_shape=I!,pads=I,storage_order=i,strides=I 22:1-1:1-2:auto_pad=s,ceil_mode=i,dilations=I,kernel_shape=I!,pads=I,storage_order=i,strides=I
ai.onnx MaxRoiPool 1:2-2:1-1:pooled_shape=I!,spatial_scale=f 22:2-2:1-1:pooled_shape=I!,spatial_scale=f
ai.onnx MaxUnpool 9:2-3:1-1:kernel_shape=I!,pads=I,strides=I 11:2-3:1-1:kernel_shape=I!,pads=I,strides=I 22:2-3:1-1:kernel_shape=I!,pads=I,strides=I
ai.onnx Mean 1:1-:1-1:consumed_inputs=I 6:1-:1-1: 8:1-:1-1: 13:1-:1-1:
ai.onnx MeanVarianceNormalization 9:1-1:1-1:axes=I 13:1-1:1-1:axes=I
ai.onnx MelWeightMatrix 17:5-5:1-1:output_datatype=i
ai.onnx Min 1:1-:1-1:consumed_inputs=I 6:1-:1-1: 8:1-:1-1: 12:1-:1-1: 13:1-:1-1:
ai.onnx Mish 18:1-1:1-1: 22:1-1:1-1:
ai.onnx Mod 10:2-2:1-1:fmod=i 13:2-2:1-1:fmod=i 28:2-2:1-1:fmod=i
ai.onnx Mul 1:2-2:1-1:axis=i,broadcast=i,consumed_inputs=I 6:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1: 13:2-2:1-1: 14:2-2:1-1:
ai.onnx Multinomial 7:1-1:1-1:dtype=i,sample_size=i,seed=f 22:1-1:1-1:dtype=i,sample_size=i,seed=f
ai.onnx Neg 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx NegativeLogLikelihoodLoss 12:2-3:1-1:ignore_index=i,reduction=s 13:2-3:1-1:ignore_index=i,reduction=s 22:2-3:1-1:ignore_index=i,reduction=s
ai.onnx NonMaxSuppression 10:2-5:1-1:center_point_box=i 11:2-5:1-1:center_point_box=i
ai.onnx NonZero 9:1-1:1-1: 13:1-1:1-1:
ai.onnx Not 1:1-1:1-1:
ai.onnx OneHot 9:3-3:1-1:axis=i 11:3-3:1-1:axis=i 28:3-3:1-1:axis=i
ai.onnx Optional 15:0-1:1-1:type=y 28:0-1:1-1:type=y
ai.onnx OptionalGetElement 15:1-1:1-1: 18:1-1:1-1: 28:1-1:1-1:
ai.onnx OptionalHasElement 15:1-1:1-1: 18:0-1:1-1: 28:0-1:1-1:
ai.onnx Or 1:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1:
ai.onnx PRelu 1:2-2:1-1:consumed_inputs=I 6:2-2:1-1: 7:2-2:1-1: 9:2-2:1-1: 16:2-2:1-1:
ai.onnx Pad 1:1-1:1-1:mode=s,paddings=I!,value=f 2:1-1:1-1:mode=s,pads=I!,value=f 11:2-3:1-1:mode=s 13:2-3:1-1:mode=s 18:2-4:1-1:mode=s 19:2-4:1-1:mode=s 21:2-4:1-1:mode=s 23:2-4:1-1:mode=s 24:2-4:1-1:mode=s 25:2-4:1-1:mode=s
ai.onnx Pow 1:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1: 12:2-2:1-1: 13:2-2:1-1: 15:2-2:1-1:
ai.onnx QLinearConv 10:8-9:1-1:auto_pad=s,dilations=I,group=i,kernel_shape=I,pads=I,strides=I
ai.onnx QLinearMatMul 10:8-8:1-1: 21:8-8:1-1:
ai.onnx QuantizeLinear 10:2-3:1-1: 13:2-3:1-1:axis=i 19:2-3:1-1:axis=i,saturate=i 21:2-3:1-1:axis=i,block_size=i,output_dtype=i,saturate=i 23:2-3:1-1:axis=i,block_size=i,output_dtype=i,precision=i,saturate=i 24:2-3:1-1:axis=i,block_size=i,output_dtype=i,precision=i,saturate=i 25:2-3:1-1:axis=i,block_size=i,output_dtype=i,precision=i,saturate=i 28:2-3:1-1:axis=i,block_size=i,output_dtype=i,precision=i,saturate=i
ai.onnx RMSNormalization 23:2-2:1-1:axis=i,epsilon=f,stash_type=i
ai.onnx RNN 1:3-6:0-2:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,output_sequence=i 7:3-6:0-2:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i 14:3-6:0-2:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,layout=i 22:3-6:0-2:activation_alpha=F,activation_beta=F,activations=S,clip=f,direction=s,hidden_size=i,layout=i
ai.onnx RandomNormal 1:0-0:1-1:dtype=i,mean=f,scale=f,seed=f,shape=I! 22:0-0:1-1:dtype=i,mean=f,scale=f,seed=f,shape=I!
ai.onnx RandomNormalLike 1:1-1:1-1:dtype=i,mean=f,scale=f,seed=f 22:1-1:1-1:dtype=i,mean=f,scale=f,seed=f
ai.onnx RandomUniform 1:0-0:1-1:dtype=i,high=f,low=f,seed=f,shape=I! 22:0-0:1-1:dtype=i,high=f,low=f,seed=f,shape=I!
ai.onnx RandomUniformLike 1:1-1:1-1:dtype=i,high=f,low=f,seed=f 22:1-1:1-1:dtype=i,high=f,low=f,seed=f
ai.onnx Range 11:3-3:1-1: 27:3-3:1-1:stash_type=i
ai.onnx Reciprocal 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx ReduceL1 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 13:1-1:1-1:axes=I,keepdims=i 18:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx ReduceL2 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 13:1-1:1-1:axes=I,keepdims=i 18:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx ReduceLogSum 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 13:1-1:1-1:axes=I,keepdims=i 18:1-2:1-1:keepdims=i,noop_with_empty_axes=i 28:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx ReduceLogSumExp 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 13:1-1:1-1:axes=I,keepdims=i 18:1-2:1-1:keepdims=i,noop_with_empty_axes=i 28:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx ReduceMax 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 12:1-1:1-1:axes=I,keepdims=i 13:1-1:1-1:axes=I,keepdims=i 18:1-2:1-1:keepdims=i,noop_with_empty_axes=i 20:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx ReduceMean 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 13:1-1:1-1:axes=I,keepdims=i 18:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx ReduceMin 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 12:1-1:1-1:axes=I,keepdims=i 13:1-1:1-1:axes=I,keepdims=i 18:1-2:1-1:keepdims=i,noop_with_empty_axes=i 20:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx ReduceProd 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 13:1-1:1-1:axes=I,keepdims=i 18:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx ReduceSum 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 13:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx ReduceSumSquare 1:1-1:1-1:axes=I,keepdims=i 11:1-1:1-1:axes=I,keepdims=i 13:1-1:1-1:axes=I,keepdims=i 18:1-2:1-1:keepdims=i,noop_with_empty_axes=i
ai.onnx RegexFullMatch 20:1-1:1-1:pattern=s
ai.onnx Relu 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1: 14:1-1:1-1:
ai.onnx Reshape 1:1-1:1-1:consumed_inputs=I,shape=I 5:2-2:1-1: 13:2-2:1-1: 14:2-2:1-1:allowzero=i 19:2-2:1-1:allowzero=i 21:2-2:1-1:allowzero=i 23:2-2:1-1:allowzero=i 24:2-2:1-1:allowzero=i 25:2-2:1-1:allowzero=i
ai.onnx Resize 10:2-2:1-1:mode=s 11:3-4:1-1:coordinate_transformation_mode=s,cubic_coeff_a=f,exclude_outside=i,extrapolation_value=f,mode=s,nearest_mode=s 13:1-4:1-1:coordinate_transformation_mode=s,cubic_coeff_a=f,exclude_outside=i,extrapolation_value=f,mode=s,nearest_mode=s 18:1-4:1-1:antialias=i,axes=I,coordinate_transformation_mode=s,cubic_coeff_a=f,exclude_outside=i,extrapolation_value=f,keep_aspect_ratio_policy=s,mode=s,nearest_mode=s 19:1-4:1-1:antialias=i,axes=I,coordinate_transformation_mode=s,cubic_coeff_a=f,exclude_outside=i,extrapolation_value=f,keep_aspect_ratio_policy=s,mode=s,nearest_mode=s
ai.onnx ReverseSequence 10:2-2:1-1:batch_axis=i,time_axis=i 28:2-2:1-1:batch_axis=i,time_axis=i
ai.onnx RoiAlign 10:3-3:1-1:mode=s,output_height=i,output_width=i,sampling_ratio=i,spatial_scale=f 16:3-3:1-1:coordinate_transformation_mode=s,mode=s,output_height=i,output_width=i,sampling_ratio=i,spatial_scale=f 22:3-3:1-1:coordinate_transformation_mode=s,mode=s,output_height=i,output_width=i,sampling_ratio=i,spatial_scale=f
ai.onnx RotaryEmbedding 23:3-4:1-1:interleaved=i,num_heads=i,rotary_embedding_dim=i
ai.onnx Round 11:1-1:1-1: 22:1-1:1-1:
ai.onnx STFT 17:2-4:1-1:onesided=i
ai.onnx Scan 8:2-:1-:body=g!,directions=I,num_scan_inputs=i! 9:1-:1-:body=g!,num_scan_inputs=i!,scan_input_axes=I,scan_input_directions=I,scan_output_axes=I,scan_output_directions=I 11:1-:1-:body=g!,num_scan_inputs=i!,scan_input_axes=I,scan_input_directions=I,scan_output_axes=I,scan_output_directions=I 16:1-:1-:body=g!,num_scan_inputs=i!,scan_input_axes=I,scan_input_directions=I,scan_output_axes=I,scan_output_directions=I 19:1-:1-:body=g!,num_scan_inputs=i!,scan_input_axes=I,scan_input_directions=I,scan_output_axes=I,scan_output_directions=I 21:1-:1-:body=g!,num_scan_inputs=i!,scan_input_axes=I,scan_input_directions=I,scan_output_axes=I,scan_output_directions=I 23:1-:1-:body=g!,num_scan_inputs=i!,scan_input_axes=I,scan_input_directions=I,scan_output_axes=I,scan_output_directions=I 24:1-:1-:body=g!,num_scan_inputs=i!,scan_input_axes=I,scan_input_directions=I,scan_output_axes=I,scan_output_directions=I 25:1-:1-:body=g!,num_scan_inputs=i!,scan_input_axes=I,scan_input_directions=I,scan_output_axes=I,scan_output_directions=I
ai.onnx Scatter 9:3-3:1-1:axis=i 11:-
ai.onnx ScatterElements 11:3-3:1-1:axis=i 13:3-3:1-1:axis=i 16:3-3:1-1:axis=i,reduction=s 18:3-3:1-1:axis=i,reduction=s
ai.onnx ScatterND 11:3-3:1-1: 13:3-3:1-1: 16:3-3:1-1:reduction=s 18:3-3:1-1:reduction=s
ai.onnx Selu 1:1-1:1-1:alpha=f,consumed_inputs=I,gamma=f 6:1-1:1-1:alpha=f,gamma=f 22:1-1:1-1:alpha=f,gamma=f
ai.onnx SequenceAt 11:2-2:1-1:
ai.onnx SequenceConstruct 11:1-:1-1:
ai.onnx SequenceEmpty 11:0-0:1-1:dtype=i
ai.onnx SequenceErase 11:1-2:1-1:
ai.onnx SequenceInsert 11:2-3:1-1:
ai.onnx SequenceLength 11:1-1:1-1:
ai.onnx SequenceMap 17:1-:1-:body=g!
ai.onnx Shape 1:1-1:1-1: 13:1-1:1-1: 15:1-1:1-1:end=i,start=i 19:1-1:1-1:end=i,start=i 21:1-1:1-1:end=i,start=i 23:1-1:1-1:end=i,start=i 24:1-1:1-1:end=i,start=i 25:1-1:1-1:end=i,start=i
ai.onnx Shrink 9:1-1:1-1:bias=f,lambd=f
ai.onnx Sigmoid 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx Sign 9:1-1:1-1: 13:1-1:1-1:
ai.onnx Sin 7:1-1:1-1: 22:1-1:1-1:
ai.onnx Sinh 9:1-1:1-1: 22:1-1:1-1:
ai.onnx Size 1:1-1:1-1: 13:1-1:1-1: 19:1-1:1-1: 21:1-1:1-1: 23:1-1:1-1: 24:1-1:1-1: 25:1-1:1-1:
ai.onnx Slice 1:1-1:1-1:axes=I,ends=I!,starts=I! 10:3-5:1-1: 11:3-5:1-1: 13:3-5:1-1:
ai.onnx Softmax 1:1-1:1-1:axis=i 11:1-1:1-1:axis=i 13:1-1:1-1:axis=i
ai.onnx SoftmaxCrossEntropyLoss 12:2-3:1-2:ignore_index=i,reduction=s 13:2-3:1-2:ignore_index=i,reduction=s
ai.onnx Softplus 1:1-1:1-1: 22:1-1:1-1:
ai.onnx Softsign 1:1-1:1-1: 22:1-1:1-1:
ai.onnx SpaceToDepth 1:1-1:1-1:blocksize=i! 13:1-1:1-1:blocksize=i! 28:1-1:1-1:blocksize=i!,mode=s
ai.onnx Split 1:1-2:1-:axis=i,split=I 2:1-1:1-:axis=i,split=I 11:1-1:1-:axis=i,split=I 13:1-2:1-:axis=i 18:1-2:1-:axis=i,num_outputs=i
ai.onnx SplitToSequence 11:1-2:1-1:axis=i,keepdims=i 24:1-2:1-1:axis=i,keepdims=i
ai.onnx Sqrt 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx Squeeze 1:1-1:1-1:axes=I 11:1-1:1-1:axes=I 13:1-2:1-1: 21:1-2:1-1: 23:1-2:1-1: 24:1-2:1-1: 25:1-2:1-1:
ai.onnx StringConcat 20:2-2:1-1:
ai.onnx StringNormalizer 10:1-1:1-1:case_change_action=s,is_case_sensitive=i,locale=s,stopwords=S
ai.onnx StringSplit 20:1-1:2-2:delimiter=s,maxsplit=i
ai.onnx Sub 1:2-2:1-1:axis=i,broadcast=i,consumed_inputs=I 6:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1: 13:2-2:1-1: 14:2-2:1-1:
ai.onnx Sum 1:1-:1-1:consumed_inputs=I 6:1-:1-1: 8:1-:1-1: 13:1-:1-1:
ai.onnx SwiGLU 28:2-2:1-1:alpha=f
ai.onnx Swish 24:1-1:1-1:alpha=f
ai.onnx Tan 7:1-1:1-1: 22:1-1:1-1:
ai.onnx Tanh 1:1-1:1-1:consumed_inputs=I 6:1-1:1-1: 13:1-1:1-1:
ai.onnx TensorScatter 24:2-3:1-1:axis=i,mode=s
ai.onnx TfIdfVectorizer 9:1-1:1-1:max_gram_length=i!,max_skip_count=i!,min_gram_length=i!,mode=s!,ngram_counts=I!,ngram_indexes=I!,pool_int64s=I,pool_strings=S,weights=F
ai.onnx ThresholdedRelu 10:1-1:1-1:alpha=f 22:1-1:1-1:alpha=f
ai.onnx Tile 1:3-3:1-1: 6:2-2:1-1: 13:2-2:1-1:
ai.onnx TopK 1:1-1:2-2:axis=i,k=i! 10:2-2:2-2:axis=i 11:2-2:2-2:axis=i,largest=i,sorted=i 24:2-2:2-2:axis=i,largest=i,sorted=i
ai.onnx Transpose 1:1-1:1-1:perm=I 13:1-1:1-1:perm=I 21:1-1:1-1:perm=I 23:1-1:1-1:perm=I 24:1-1:1-1:perm=I 25:1-1:1-1:perm=I
ai.onnx Trilu 14:1-2:1-1:upper=i
ai.onnx Unique 11:1-1:1-4:axis=i,sorted=i 28:1-1:1-4:axis=i,sorted=i
ai.onnx Unsqueeze 1:1-1:1-1:axes=I! 11:1-1:1-1:axes=I! 13:2-2:1-1: 21:2-2:1-1: 23:2-2:1-1: 24:2-2:1-1: 25:2-2:1-1:
ai.onnx Upsample 7:1-1:1-1:mode=s,scales=F! 9:2-2:1-1:mode=s 10:-
ai.onnx Where 9:3-3:1-1: 16:3-3:1-1:
ai.onnx Xor 1:2-2:1-1:axis=i,broadcast=i 7:2-2:1-1:
ai.onnx.ml ArrayFeatureExtractor 1:2-2:1-1:
ai.onnx.ml Binarizer 1:1-1:1-1:threshold=f
ai.onnx.ml CastMap 1:1-1:1-1:cast_to=s,map_form=s,max_map=i
ai.onnx.ml CategoryMapper 1:1-1:1-1:cats_int64s=I,cats_strings=S,default_int64=i,default_string=s
ai.onnx.ml DictVectorizer 1:1-1:1-1:int64_vocabulary=I,string_vocabulary=S
ai.onnx.ml FeatureVectorizer 1:1-:1-1:inputdimensions=I
ai.onnx.ml Imputer 1:1-1:1-1:imputed_value_floats=F,imputed_value_int64s=I,replaced_value_float=f,replaced_value_int64=i
ai.onnx.ml LabelEncoder 1:1-1:1-1:classes_strings=S,default_int64=i,default_string=s 2:1-1:1-1:default_float=f,default_int64=i,default_string=s,keys_floats=F,keys_int64s=I,keys_strings=S,values_floats=F,values_int64s=I,values_strings=S 4:1-1:1-1:default_float=f,default_int64=i,default_string=s,default_tensor=t,keys_floats=F,keys_int64s=I,keys_strings=S,keys_tensor=t,values_floats=F,values_int64s=I,values_strings=S,values_tensor=t
ai.onnx.ml LinearClassifier 1:1-1:2-2:classlabels_ints=I,classlabels_strings=S,coefficients=F!,intercepts=F,multi_class=i,post_transform=s
ai.onnx.ml LinearRegressor 1:1-1:1-1:coefficients=F,intercepts=F,post_transform=s,targets=i
ai.onnx.ml Normalizer 1:1-1:1-1:norm=s
ai.onnx.ml OneHotEncoder 1:1-1:1-1:cats_int64s=I,cats_strings=S,zeros=i
ai.onnx.ml SVMClassifier 1:1-1:2-2:classlabels_ints=I,classlabels_strings=S,coefficients=F,kernel_params=F,kernel_type=s,post_transform=s,prob_a=F,prob_b=F,rho=F,support_vectors=F,vectors_per_class=I
ai.onnx.ml SVMRegressor 1:1-1:1-1:coefficients=F,kernel_params=F,kernel_type=s,n_supports=i,one_class=i,post_transform=s,rho=F,support_vectors=F
ai.onnx.ml Scaler 1:1-1:1-1:offset=F,scale=F
ai.onnx.ml TreeEnsemble 5:1-1:1-1:aggregate_function=i,leaf_targetids=I!,leaf_weights=t!,membership_values=t,n_targets=i,nodes_falseleafs=I!,nodes_falsenodeids=I!,nodes_featureids=I!,nodes_hitrates=t,nodes_missing_value_tracks_true=I,nodes_modes=t!,nodes_splits=t!,nodes_trueleafs=I!,nodes_truenodeids=I!,post_transform=i,tree_roots=I!
ai.onnx.ml TreeEnsembleClassifier 1:1-1:2-2:base_values=F,class_ids=I,class_nodeids=I,class_treeids=I,class_weights=F,classlabels_int64s=I,classlabels_strings=S,nodes_falsenodeids=I,nodes_featureids=I,nodes_hitrates=F,nodes_missing_value_tracks_true=I,nodes_modes=S,nodes_nodeids=I,nodes_treeids=I,nodes_truenodeids=I,nodes_values=F,post_transform=s 3:1-1:2-2:base_values=F,base_values_as_tensor=t,class_ids=I,class_nodeids=I,class_treeids=I,class_weights=F,class_weights_as_tensor=t,classlabels_int64s=I,classlabels_strings=S,nodes_falsenodeids=I,nodes_featureids=I,nodes_hitrates=F,nodes_hitrates_as_tensor=t,nodes_missing_value_tracks_true=I,nodes_modes=S,nodes_nodeids=I,nodes_treeids=I,nodes_truenodeids=I,nodes_values=F,nodes_values_as_tensor=t,post_transform=s 5:-
ai.onnx.ml TreeEnsembleRegressor 1:1-1:1-1:aggregate_function=s,base_values=F,n_targets=i,nodes_falsenodeids=I,nodes_featureids=I,nodes_hitrates=F,nodes_missing_value_tracks_true=I,nodes_modes=S,nodes_nodeids=I,nodes_treeids=I,nodes_truenodeids=I,nodes_values=F,post_transform=s,target_ids=I,target_nodeids=I,target_treeids=I,target_weights=F 3:1-1:1-1:aggregate_function=s,base_values=F,base_values_as_tensor=t,n_targets=i,nodes_falsenodeids=I,nodes_featureids=I,nodes_hitrates=F,nodes_hitrates_as_tensor=t,nodes_missing_value_tracks_true=I,nodes_modes=S,nodes_nodeids=I,nodes_treeids=I,nodes_truenodeids=I,nodes_values=F,nodes_values_as_tensor=t,post_transform=s,target_ids=I,target_nodeids=I,target_treeids=I,target_weights=F,target_weights_as_tensor=t 5:-
ai.onnx.ml ZipMap 1:1-1:1-1:classlabels_int64s=I,classlabels_strings=S
"""
"""Of each operator a line: domain, name, and for each version ``number:inputs:outputs:attributes``.

Inputs and outputs are the least and the largest number; the largest is left out where there is none, and ``?`` stands
behind a least number of inputs of which each may be without a name. Of an attribute there are name, a sign for its
type, and ``!`` if it has to be given. A version in which the operator is gone has ``-``.
"""
